"""The job's caches: restored before `setup`, kept while it and the program run. The work is that
of a process beside us (`trainer.caches`), which ends with us; nothing that happens to it is fatal.
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
from trainer.agent.base.pythons import find_python
from trainer.agent.base.side_programs import start_beside

QUIET_S = 10.0  # without a change, before a cache has settled
_LOOK_S = 0.2
_AT_WORK = {Phase.SETUP, Phase.CLAIMING, Phase.RUNNING}
_MOST_LINE = 4096


def restore_caches(site: AgentContext, start: StartDocument, given_up: Callable[[], bool]) -> None:
    """Waits, in a thread of its own."""
    work = _begin(site, start, "restore")
    if work is None:
        return
    while work.is_alive():
        work.join(_LOOK_S)
        if given_up():
            work.end()


class Caches:
    """Belongs to the agent's loop: no method waits."""

    def __init__(self, site: AgentContext, demands: DesiredState) -> None:
        self._site, self._demands = site, demands
        self._work: _Work | None = None
        self._begun = False

    def look(self, phase: Phase) -> None:
        """Have them kept while the job's programs run; not beside a last save."""
        start = self._demands.start
        wanted = phase in _AT_WORK and self._demands.stopping is None
        if wanted and not self._begun and start is not None:
            self._begun = True
            if not self._site.config.rank:
                self._work = _begin(self._site, start, "keep")
        elif not wanted and self._work is not None:
            self._work.end()
            self._work = None


class _Work(threading.Thread):
    """Hears what the process says; alive for as long as that is."""

    def __init__(self, site: AgentContext, process: subprocess.Popen[bytes]) -> None:
        super().__init__(name="caches", daemon=True)
        self._site, self._process = site, process

    def run(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - a pipe was asked for
        for line in iter(lambda: self._process.stdout.readline(_MOST_LINE), b""):  # type: ignore[union-attr]
            with suppress(ValueError):
                self._site.journal.append(wire.CACHE, dict(json.loads(line)))
        self._process.wait()
        self.end()

    def end(self) -> None:
        """It has nothing that has to be finished."""
        self._process.kill()
        with suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]


def _begin(site: AgentContext, start: StartDocument, what: str) -> _Work | None:
    """None where there is nothing to do, or nothing to do it with."""
    if not start.caches or start.bake:
        return None
    near = start.near_store
    python = find_python(site.places.home, near.url)
    if not python:
        if what == "restore":
            text = "are not kept: no Python here has obstore and xxhash"
            said = {"status": "failed", "path": ", ".join(start.caches), "text": text}
            site.journal.append(wire.CACHE, said)
        return None
    order = {
        "store_url": near.url,
        "store_options": dict(near.options),
        "job_id": site.config.job_id,
        "caches": [(path, str(_folder(site, path))) for path in start.caches],
        "most": start.cache_bytes,
        "quiet_s": float(site.environ.get("SPOTD_CACHE_QUIET_S", QUIET_S)),
    }
    try:
        process = start_beside(python, "trainer.caches", order, what)
    except OSError as error:
        said = {
            "status": "failed",
            "path": ", ".join(start.caches),
            "text": f"cannot be looked after: {error}",
        }
        site.journal.append(wire.CACHE, said)
        return None
    work = _Work(site, process)
    work.start()
    return work


def _folder(site: AgentContext, path: str) -> Path:
    return site.places.below_workdir(str(Path(path).expanduser()))
