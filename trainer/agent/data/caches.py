"""Restore the job's caches before `setup`, and upload them while it and the program run.

A helper process (`trainer.caches`) does the work and ends with the agent. Its failures are never
fatal.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from spotd import wire
from spotd.wire import StartDocument
from trainer.agent.base.context import AgentContext
from trainer.agent.base.desired_state import DesiredState
from trainer.agent.base.phase import Phase
from trainer.agent.base.pythons import find_python, start_side_program

QUIET_S = 10.0  # a cache is uploaded after so long without a change
_POLL_S = 0.2
_ACTIVE = {Phase.SETUP, Phase.CLAIMING, Phase.RUNNING}
_MAX_LINE_BYTES = 4096


def restore_caches(
    context: AgentContext, start: StartDocument, cancelled: Callable[[], bool]
) -> None:
    """Restore the caches; blocks, so call it in a thread."""
    process = _start(context, start, "restore")
    if process is None:
        return
    while process.is_alive():
        process.join(_POLL_S)
        if cancelled():
            process.kill()


class Caches:
    """Uploads caches while the program runs. Belongs to the agent's loop: no method blocks."""

    def __init__(self, context: AgentContext, desired: DesiredState) -> None:
        self._context, self._desired = context, desired
        self._process: _CacheProcess | None = None
        self._started = False

    def update(self, phase: Phase) -> None:
        """Start the upload when the job's programs run, and end it for the last save."""
        start = self._desired.start
        should_run = phase in _ACTIVE and self._desired.stopping is None
        if should_run and not self._started and start is not None:
            self._started = True
            if not self._context.config.rank:
                self._process = _start(self._context, start, "keep")
        elif not should_run and self._process is not None:
            self._process.kill()
            self._process = None


class _CacheProcess(threading.Thread):
    """Journals the lines that the helper process prints; alive as long as the process."""

    def __init__(self, context: AgentContext, process: subprocess.Popen[bytes]) -> None:
        super().__init__(name="caches", daemon=True)
        self._context, self._process = context, process

    def run(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        for line in iter(lambda: self._process.stdout.readline(_MAX_LINE_BYTES), b""):  # type: ignore[union-attr]
            with suppress(ValueError):
                self._context.journal.append(wire.CACHE, dict(json.loads(line)))
        self._process.wait()
        self.kill()

    def kill(self) -> None:
        """Kill the process, which has nothing that must be finished."""
        self._process.kill()
        with suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]


def _start(context: AgentContext, start: StartDocument, action: str) -> _CacheProcess | None:
    """Start the helper process; None if there is nothing to do or no Python to do it."""
    if not start.files.caches or start.program.bake:
        return None
    near = start.storage.near
    python = find_python(context.paths.home, near.url)
    if not python:
        if action == "restore":
            text = "are not saved: no Python on this machine has obstore and xxhash"
            entry = {"status": "failed", "path": ", ".join(start.files.caches), "text": text}
            context.journal.append(wire.CACHE, entry)
        return None
    request = {
        "store_url": near.url,
        "store_options": dict(near.options),
        "job_id": context.config.job_id,
        "caches": [(path, str(_folder(context, path))) for path in start.files.caches],
        "most": start.files.cache_bytes,
        "quiet_s": float(context.environ.get("SPOTD_CACHE_QUIET_S", QUIET_S)),
    }
    try:
        process = start_side_program(python, "trainer.caches", request, action)
    except OSError as error:
        entry = {
            "status": "failed",
            "path": ", ".join(start.files.caches),
            "text": f"cannot be saved: {error}",
        }
        context.journal.append(wire.CACHE, entry)
        return None
    thread = _CacheProcess(context, process)
    thread.start()
    return thread


def _folder(context: AgentContext, path: str) -> Path:
    return context.paths.in_workdir(str(Path(path).expanduser()))
