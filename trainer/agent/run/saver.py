"""The saver beside the training program: started when the program asks for it, and not by the
program, so that what is staged is saved even if the program is killed. Of a job that goes on it is
started before `setup`, where this machine has a Python for it, and fetches meanwhile."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from spotd.wire import StartDocument
from trainer.agent.base.context import AgentContext
from trainer.agent.base.pythons import find_python, own_python
from trainer.agent.base.stop_timing import FINAL_S, Stopping, StopTiming
from trainer.agent.process.script import Script, ScriptState
from trainer.agent.run.container import Container

NAME = "saver"
LAST_WORDS_S = 1.0
_ENGINE = "spotd"  # what saves through it


class Saver:
    """Belongs to the agent's loop: no method waits. One that an earlier agent started is found.
    `lines()` is how many processes may still say something; `policy()` how long saving may take.
    `said`: kinds of entry of this boot."""

    def __init__(
        self,
        site: AgentContext,
        said: Iterable[str],
        policy: Callable[[], StopTiming],
        lines: Callable[[], int],
    ) -> None:
        self._site, self.container = site, Container(site, said)
        self._policy, self._lines = policy, lines
        self._script = Script(site.places.memory / NAME, site.keeper_argv, site.keeper_env)
        self._told = False
        self._until = self._quiet_by = 0.0

    def enter(self) -> None:
        """It runs in the container, as the program does."""
        self.container.enter(**{NAME: self._script})

    def begin_early(self, start: StartDocument, until: float) -> None:
        """Have one before the program is there to ask, if the job has been anywhere: it fetches the
        newest checkpoint meanwhile. Where that cannot be, the program gets its own when it asks."""
        there = start.head_generation and start.engine == _ENGINE
        if not there or start.image or start.bake or self._site.config.rank:
            return
        python = find_python(self._site.places.home, start.store_url, *start.other_stores)
        if python:
            with suppress(OSError):
                self.want(_with(python), start, until)

    def want(self, argv: Sequence[str], start: StartDocument, until: float) -> None:
        """Have one, in the environment of its own, and where there is none, as in a container, in
        the program's: `argv`. Raises OSError; then it may be asked again,
        as by one whose saver has died."""
        if self._script.state is ScriptState.ENDED:
            self._script.forget()
        if self._script.state is not ScriptState.ABSENT:
            return
        self._told = False
        own = "" if start.image else own_python(self._site.places.home)
        text = f"exec {shlex.join(_with(own) if own else argv)}\n"
        order = self.container.order(NAME, NAME, text, start, until)
        log = str(self._site.places.folder / f"{NAME}.log")  # none of the job's own
        self._script.order(replace(order, log=log))

    def begin_end(self, now: float) -> None:
        """The program has ended, or is about to begin again."""
        self._until, self._quiet_by = now + self._policy().patience_s(), now + LAST_WORDS_S

    def finish(self, now: float, stopping: Stopping | None, *, stays: bool) -> bool:
        """Have it commit what is staged and end, in the time that there is, unless it `stays` for
        the next program; True when all is said, its own last words and the program's. To be called
        until then."""
        if stopping is not None:
            self._until = min(self._until, max(stopping.kill_at, now) + FINAL_S / 2)
            stays = False
        if not stays and self._script.state not in {ScriptState.ABSENT, ScriptState.ENDED}:
            self._quiet_by = now + LAST_WORDS_S
            if now >= self._until:
                self._script.kill()
            elif not self._told:
                self._told = self._script.signal_workers(signal.SIGTERM) > 0
            return False
        return not self._lines() or now >= self._quiet_by

    def kill(self) -> int:
        """Now, and what is under way is lost; how many processes it was."""
        return self._script.kill()


def _with(python: str) -> list[str]:
    """A saver of ours, run by that Python."""
    ours = f"PYTHONPATH={Path(__file__).parents[3]}"
    return ["env", ours, python, "-m", "trainer.saver", "--stay"]
