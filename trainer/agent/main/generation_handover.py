"""A machine that goes on in another generation: what is left of the earlier one ends first.

The daemon hands a machine of a gang over to the next generation without a boot between them. Two
things follow. Nothing of the earlier generation may run beside this one, whatever state it is in:
its program may hang in a collective whose peer is gone, and its agent may be dead. And what `setup`
made is there already: its working directory is gone on with, under the path that it was made under,
since virtual environments and the like name their own. A container ends with its generation; then
the new one is set up from the beginning.
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
from trainer.agent.base.paths import AgentPaths, same_job
from trainer.agent.main.control import send_command
from trainer.agent.process.script import Script, ScriptState
from trainer.agent.run.journal_replay import read_boot_id, recall

_LOG = logging.getLogger(__name__)
STOP_S = 10.0  # for the earlier agent to end what it runs; after that it is ended with it
TOLD_S = 3.0
LEAVE_S = 2.0
LOOK_S = 0.02
_PEER = struct.Struct("3i")  # pid, uid, gid
_SCRIPTS = ("setup", "run", "saver")


def succeed(places: AgentPaths, job_id: str) -> None:
    """End what earlier generations of the job left on this machine, and take over what the newest
    of them had prepared. Does nothing on a machine that is new to the job, and nothing twice."""
    earlier = _earlier(places, job_id)
    for other, generation in earlier:
        _end(other, generation)
    if earlier and not places.inherits and _is_prepared(earlier[0][0]):
        with suppress(OSError):  # it is in use already: an agent before this one has unpacked there
            places.workdir.rmdir()
            places.workdir.symlink_to(os.path.realpath(earlier[0][0].workdir))


def _earlier(places: AgentPaths, job_id: str) -> list[tuple[AgentPaths, int]]:
    """The folders of older generations, the newest first."""
    ours = int(places.folder.name[1:])
    names = (folder.name for folder in places.folder.parent.glob("g*"))
    numbers = (int(name[1:]) for name in names if re.fullmatch(r"g\d+", name))
    found = sorted((number for number in numbers if number < ours), reverse=True)
    return [(same_job(places, job_id, number), number) for number in found]


def _is_prepared(places: AgentPaths) -> bool:
    """Its setup is done, in this boot of the machine, and not in a container."""
    if places.inherits:
        return True
    try:
        lines = places.journal.read_bytes().splitlines(keepends=True)
    except OSError:
        return False
    entries: list[JournalEntry] = [entry for entry in map(parse_entry, lines) if entry is not None]
    said = recall(entries, read_boot_id()).said
    return wire.IMAGE not in said and bool(said & {wire.SETUP + ":ok", wire.READY, wire.STARTED})


def _end(places: AgentPaths, generation: int) -> None:
    """Its agent is asked first, which knows best; what does not obey is killed."""
    scripts = [Script(places.memory / name, (), {}) for name in _SCRIPTS]
    agent = _agent(places)
    if agent:
        data = {"reason": "this machine goes on in another generation"}
        line = Command(wire.STOP, generation, data).to_line()
        with suppress(OSError, WireError):
            send_command(places.control_socket, line, TOLD_S)
        _await(lambda: not _runs(scripts, places), STOP_S)
        with suppress(ProcessLookupError):
            os.kill(agent, signal.SIGTERM)
        if not _await(lambda: not _agent(places), LEAVE_S):
            _LOG.warning("the agent of generation %d does not end: it is killed", generation)
            with suppress(ProcessLookupError):
                os.kill(agent, signal.SIGKILL)
    for script in scripts:
        script.kill()
    _await(lambda: not _runs(scripts, places), LEAVE_S)


def _runs(scripts: list[Script], places: AgentPaths) -> bool:
    over = {ScriptState.ABSENT, ScriptState.ENDED}
    return any(script.state not in over for script in scripts) or places.container.exists()


def _agent(places: AgentPaths) -> int:
    """The process id of who answers there; 0 for nobody."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(TOLD_S)
        line.connect(str(places.control_socket))
        peer = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        return int(_PEER.unpack(peer)[0])
    return 0


def _await(done: Callable[[], bool], limit_s: float) -> bool:
    until = time.monotonic() + limit_s
    while not done():
        if time.monotonic() >= until:
            return False
        time.sleep(LOOK_S)
    return True
