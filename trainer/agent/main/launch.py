"""Start the agent once, detached from the caller."""

from __future__ import annotations

import fcntl
import importlib
import json
import logging
import os
import queue
import re
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from providers.base import NoticeWatcher
from providers.clouds import CLOUDS
from spotd import wire
from spotd.wire import AgentConfig
from trainer.agent.base.context import AgentContext
from trainer.agent.base.folders import make_folders
from trainer.agent.base.journal import Journal
from trainer.agent.base.notices import NoWatcher
from trainer.agent.base.paths import AgentPaths, NodeError, find_paths
from trainer.agent.base.preparation import LIMIT_S, Preparation
from trainer.agent.base.streams import LIMIT_BYTES
from trainer.agent.cleanup.wipe import wipe
from trainer.agent.main.agent import Agent
from trainer.agent.main.deadman import power_off
from trainer.agent.main.generation_handover import take_over_generation
from trainer.agent.run.journal_replay import read_boot_id, replay_journal

START_TIMEOUT_S = 20.0
_PEER = struct.Struct("3i")  # pid, uid, gid


class LaunchError(NodeError):
    """The agent did not start."""


def run_detached(config: AgentConfig, environ: Mapping[str, str]) -> dict[str, Any]:
    """Start the agent unless it runs; returns when its sockets accept connections.

    The result says whether it was started now, and has its process id. Raises LaunchError,
    FolderError.
    """
    paths = find_paths(environ, config.job_id, config.generation)
    watcher = _open_watcher(config, environ)
    _refuse_older(paths, config.generation)
    make_folders(paths)
    lock = os.open(paths.lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return {"started": False, "pid": _wait_for_other(paths)}
    # The agent inherits the open file and with it the lock, which is released when it ends.
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        _become_agent(config, paths, environ, watcher=watcher, write_end=write_end)
    os.close(write_end)
    os.close(lock)
    os.waitpid(child, 0)
    return {"started": True, "pid": _wait_ready(read_end, paths)}


def _refuse_older(paths: AgentPaths, generation: int) -> None:
    folders = paths.folder.parent.glob("g*")
    generations = [int(f.name[1:]) for f in folders if re.fullmatch(r"g\d+", f.name)]
    newest = max(generations, default=generation)
    if newest > generation:
        raise LaunchError(
            f"generation {generation} is refused: generation {newest} was started on this machine"
        )


def _open_watcher(config: AgentConfig, environ: Mapping[str, str]) -> NoticeWatcher:
    if config.watcher in {"", "none"}:
        return NoWatcher()
    if config.watcher not in CLOUDS:
        known = ", ".join(sorted(CLOUDS))
        raise LaunchError(f"unknown watcher {config.watcher!r}: it must be one of {known}, none")
    module = importlib.import_module(f"providers.{config.watcher}.notice")
    base_url = config.metadata_base or environ.get("SPOTD_METADATA_BASE", "")
    watcher: NoticeWatcher = module.Watcher(base_url)
    return watcher


def _wait_for_other(paths: AgentPaths) -> int:
    """Return the process id of the agent that holds the lock, once it accepts connections."""
    give_up_at = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < give_up_at:
        with suppress(OSError):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.connect(str(paths.control_socket))
                # The pid file may be missing if the disk is full; the kernel knows the listener.
                peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            return int(_PEER.unpack(peer)[0])
        time.sleep(0.02)
    raise LaunchError(f"an agent holds {paths.lock} but does not answer: see {paths.agent_log}")


def _wait_ready(read_end: int, paths: AgentPaths) -> int:
    """Return the process id that the agent sends when it is ready."""
    with os.fdopen(read_end, "rb") as pipe:
        if select.select([pipe], [], [], START_TIMEOUT_S)[0]:
            line = pipe.readline()
            if line:
                return int(json.loads(line)["pid"])
    tail = paths.agent_log.read_bytes()[-1000:].decode("utf-8", "replace").strip()
    raise LaunchError(f"the agent ended while starting; {paths.agent_log} ends with:\n{tail}")


def _become_agent(
    config: AgentConfig,
    paths: AgentPaths,
    environ: Mapping[str, str],
    *,
    watcher: NoticeWatcher,
    write_end: int,
) -> None:
    """In the child: leave the session and run the agent; never returns."""
    code = 1
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.umask(0o077)
        os.chdir("/")
        _redirect(paths.agent_log)
        serve(config, paths, environ, watcher=watcher, ready=lambda: _report(write_end))
        code = 0
    except BaseException:
        logging.getLogger(__name__).exception("the agent failed")
        raise
    finally:
        os._exit(code)


def _redirect(log: Path) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(nothing)
    os.close(output)


def _report(write_end: int) -> None:
    line = json.dumps({"pid": os.getpid()}).encode() + b"\n"
    with suppress(BrokenPipeError), os.fdopen(write_end, "wb") as pipe:
        pipe.write(line)


def serve(
    config: AgentConfig,
    paths: AgentPaths,
    environ: Mapping[str, str],
    *,
    watcher: NoticeWatcher,
    ready: Callable[[], None],
) -> None:
    """Run the agent in this process until its work is over."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    take_over_generation(paths, config.job_id)
    journal = Journal(paths.journal, paths.overflow, config.generation, now_us=_now_us)
    replay = replay_journal(journal.entries, read_boot_id())
    journal.entries.clear()
    argv, env = _supervisor_command(environ)
    context = AgentContext(
        config=config,
        paths=paths,
        journal=journal,
        environ=environ,
        supervisor_argv=[*argv, "keep"],
        supervisor_env=env,
        log_limit_bytes=int(environ.get("SPOTD_LOG_LIMIT_BYTES", LIMIT_BYTES)),
        callbacks=queue.SimpleQueue(),
        ended=threading.Event(),
        now_us=_now_us,
        monotonic=time.monotonic,
        preparation=Preparation(
            config.prepared_file,
            float(environ.get("SPOTD_PREPARED_S", LIMIT_S)),
            success_reported=wire.PREPARED + ":ok" in replay.reported,
        ),
    )
    agent = Agent(context, watcher, replay)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: context.post(agent.end))
    signal.signal(signal.SIGHUP, lambda *_: None)
    with suppress(OSError):  # the disk may be full; only people read this file
        paths.pid.write_text(f"{os.getpid()}\n", encoding="utf-8")
    agent.announce(replay)
    ready()
    agent.run()
    journal.close()
    if agent.deadman.power_off_due:
        wipe(paths)
        power_off(config.power_off, environ)


def _now_us() -> int:
    return time.time_ns() // 1000


def _supervisor_command(environ: Mapping[str, str]) -> tuple[Sequence[str], Mapping[str, str]]:
    """Return how to start this program again: from its archive, or from its source folder."""
    for parent in Path(__file__).resolve().parents:
        if parent.is_file():
            return [sys.executable, "-I", str(parent)], environ
    source = str(Path(__file__).resolve().parents[3])
    return [sys.executable, "-m", "trainer.node"], {**environ, "PYTHONPATH": source}
