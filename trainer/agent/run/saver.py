"""The saver process beside the training program.

The agent starts it when the program requests it, so that staged data is saved even if the program
is killed. For a job that resumes it is started before `setup`, if this machine has a Python for it,
and fetches the checkpoint meanwhile.
"""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from spotd.wire import StartDocument
from trainer.agent.base.context import AgentContext
from trainer.agent.base.pythons import find_python, saver_python
from trainer.agent.base.stop_timing import FINAL_S, Stopping, StopTiming
from trainer.agent.process.script import Script, ScriptState
from trainer.agent.run.container import Container

NAME = "saver"
LAST_WORDS_S = 1.0
_ENGINE = "spotd"  # the engine that saves through the saver


class Saver:
    """Starts and ends the saver. Belongs to the agent's loop: no method blocks.

    A saver that an earlier agent started is found again. `open_count()` is the number of
    connections that may still send something; `stop_timing()` how long saving may take; `reported`
    the kinds of this boot's journal entries.
    """

    def __init__(
        self,
        context: AgentContext,
        reported: Iterable[str],
        *,
        stop_timing: Callable[[], StopTiming],
        open_count: Callable[[], int],
    ) -> None:
        self._context, self.container = context, Container(context, reported)
        self._stop_timing, self._open_count = stop_timing, open_count
        self._script = Script(
            context.paths.memory / NAME, context.supervisor_argv, context.supervisor_env
        )
        self._term_sent = False
        self._kill_at = self._quiet_by = 0.0

    def run_in_container(self) -> None:
        """Make the saver run in the container, as the program does."""
        self.container.run_scripts_inside(**{NAME: self._script})

    def start_early(self, start: StartDocument, claim_until: float) -> None:
        """Start the saver before the program requests it, to fetch the newest checkpoint meanwhile.

        If that is not possible, the program gets its saver on request.
        """
        has_checkpoint = start.head.head_generation and start.checkpoint.engine == _ENGINE
        if (
            not has_checkpoint
            or start.program.image
            or start.program.bake
            or self._context.config.rank
        ):
            return
        storage = start.storage
        python = find_python(self._context.paths.home, storage.store_url, *storage.others)
        if python:
            with suppress(OSError):
                self.start(_saver_argv(python), start, claim_until)

    def start(self, argv: Sequence[str], start: StartDocument, claim_until: float) -> None:
        """Start the saver unless it runs. Raises OSError; then the program may request it again.

        The saver runs in its own environment; without one, as in a container, in the program's by
        `argv`.
        """
        if self._script.state is ScriptState.ENDED:
            self._script.reset()
        if self._script.state is not ScriptState.ABSENT:
            return
        self._term_sent = False
        python = "" if start.program.image else saver_python(self._context.paths.home)
        text = f"exec {shlex.join(_saver_argv(python) if python else argv)}\n"
        spec = self.container.script_spec(NAME, text, start, stream=NAME, claim_until=claim_until)
        log = str(self._context.paths.folder / f"{NAME}.log")  # not among the job's logs
        self._script.start(replace(spec, log=log))

    def begin_end(self, now: float) -> None:
        """Start the time limits: the program has ended or is about to restart."""
        self._kill_at, self._quiet_by = now + self._stop_timing().max_stop_s(), now + LAST_WORDS_S

    def finish(
        self, now: float, stopping: Stopping | None, *, is_reused: bool, succeeded: bool
    ) -> bool:
        """Make the saver commit what is staged and exit, unless it `is_reused` by the next program.

        If the program has `succeeded`, the saver also records that the job is done. Returns True
        when it and the program have sent everything. Call it until then.
        """
        if stopping is not None:
            self._kill_at = min(self._kill_at, max(stopping.kill_at, now) + FINAL_S / 2)
            is_reused = False
        if not is_reused and self._script.state not in {ScriptState.ABSENT, ScriptState.ENDED}:
            self._quiet_by = now + LAST_WORDS_S
            if now >= self._kill_at:
                self._script.kill()
            elif not self._term_sent:
                number = signal.SIGUSR2 if succeeded else signal.SIGTERM
                self._term_sent = self._script.signal_workers(number) > 0
            return False
        return not self._open_count() or now >= self._quiet_by

    def kill(self) -> int:
        """Kill the saver and lose work in progress; returns how many processes were killed."""
        return self._script.kill()


def _saver_argv(python: str) -> list[str]:
    """Return the command of our saver for this Python."""
    python_path = f"PYTHONPATH={Path(__file__).parents[3]}"
    return ["env", python_path, python, "-m", "trainer.saver", "--stay"]
