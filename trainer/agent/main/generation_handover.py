"""Hand a machine over from an earlier generation to a new one without a reboot.

Nothing of the earlier generation may run beside the new one, whatever state it is in: its program
may hang in a collective whose peer is gone, and its agent may be dead. The working directory that
`setup` prepared is reused under its original path, because virtual environments contain that path.
A container ends with its generation, and the new one is set up from scratch.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress

from spotd import wire
from spotd.wire import Command, JournalEntry, WireError
from trainer.agent.base.journal import parse_entry
from trainer.agent.base.paths import AgentPaths, paths_of_generation
from trainer.agent.main.control import send_command
from trainer.agent.process.script import Script, ScriptState
from trainer.agent.run.journal_replay import read_boot_id, replay_journal

_LOG = logging.getLogger(__name__)
STOP_S = 10.0  # for the earlier agent to end its processes; then they are killed with it
REPLY_S = 3.0
EXIT_S = 2.0
POLL_S = 0.02
_PEER = struct.Struct("3i")  # pid, uid, gid
_SCRIPTS = ("setup", "run", "saver")


def take_over_generation(paths: AgentPaths, job_id: str) -> None:
    """End what earlier generations left on this machine, and reuse the newest one's prepared
    workdir.

    Idempotent; does nothing on a machine that is new to the job.
    """
    older = _older_generations(paths, job_id)
    for other, generation in older:
        _end_generation(other, generation)
    if older and not paths.inherits_workdir and _is_prepared(older[0][0]):
        with suppress(OSError):  # not empty: an earlier agent of this generation has unpacked there
            paths.workdir.rmdir()
            paths.workdir.symlink_to(os.path.realpath(older[0][0].workdir))


def _older_generations(paths: AgentPaths, job_id: str) -> list[tuple[AgentPaths, int]]:
    """Return the older generations' paths and numbers, newest first."""
    generation = int(paths.folder.name[1:])
    names = (folder.name for folder in paths.folder.parent.glob("g*"))
    numbers = (int(name[1:]) for name in names if re.fullmatch(r"g\d+", name))
    older = sorted((number for number in numbers if number < generation), reverse=True)
    return [(paths_of_generation(paths, job_id, number), number) for number in older]


def _is_prepared(paths: AgentPaths) -> bool:
    """Whether its setup is done, in this boot of the machine, and not in a container."""
    if paths.inherits_workdir:
        return True
    try:
        lines = paths.journal.read_bytes().splitlines(keepends=True)
    except OSError:
        return False
    entries: list[JournalEntry] = [entry for entry in map(parse_entry, lines) if entry is not None]
    reported = replay_journal(entries, read_boot_id()).reported
    return wire.IMAGE not in reported and bool(
        reported & {wire.SETUP + ":ok", wire.READY, wire.STARTED}
    )


def _end_generation(paths: AgentPaths, generation: int) -> None:
    """Ask the generation's agent to stop, then kill its remaining processes."""
    scripts = [Script(paths.memory / name, (), {}) for name in _SCRIPTS]
    agent = _agent_pid(paths)
    if agent:
        data = {"reason": "this machine continues in another generation"}
        line = Command(wire.STOP, generation, data).to_line()
        with suppress(OSError, WireError):
            send_command(paths.control_socket, line, REPLY_S)
        _wait_until(lambda: not _is_running(scripts, paths), STOP_S)
        with suppress(ProcessLookupError):
            os.kill(agent, signal.SIGTERM)
        if not _wait_until(lambda: not _agent_pid(paths), EXIT_S):
            _LOG.warning("the agent of generation %d does not end: it is killed", generation)
            with suppress(ProcessLookupError):
                os.kill(agent, signal.SIGKILL)
    for script in scripts:
        script.kill()
    _wait_until(lambda: not _is_running(scripts, paths), EXIT_S)


def _is_running(scripts: list[Script], paths: AgentPaths) -> bool:
    ended_states = {ScriptState.ABSENT, ScriptState.ENDED}
    return any(script.state not in ended_states for script in scripts) or paths.container.exists()


def _agent_pid(paths: AgentPaths) -> int:
    """Return the process id of the agent that listens there, or 0."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(REPLY_S)
        connection.connect(str(paths.control_socket))
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        return int(_PEER.unpack(peer)[0])
    return 0


def _wait_until(done: Callable[[], bool], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while not done():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True
