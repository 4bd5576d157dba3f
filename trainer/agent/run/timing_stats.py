"""How long a step and a save of this program take, as far as it has shown."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from trainer.agent.base import stop_timing
from trainer.agent.base.desired_state import DesiredState
from trainer.agent.base.stop_timing import StopTiming
from trainer.agent.run.journal_replay import REPORTS, SAVES, JournalReplay, WorkerFact


class TimingStats:
    """`step` is the newest that the program has told of."""

    def __init__(
        self,
        past: JournalReplay,
        demands: DesiredState,
        planned: Callable[[], bool] = lambda: False,
    ) -> None:
        self.step = past.step
        self._demands, self._planned = demands, planned
        self._saves_s: deque[float] = deque(past.saves_s, maxlen=SAVES)
        self.steps_s: deque[float] = deque(past.steps_s, maxlen=REPORTS)  # of one, by report

    def note(self, found: WorkerFact) -> None:
        """What a message of a training process tells."""
        if found.step is not None:
            self.step = found.step
        if found.save_s is not None:
            self._saves_s.append(found.save_s)
        if found.step_s is not None:
            self.steps_s.append(found.step_s)

    @property
    def report_every_s(self) -> float:
        """How often the program tells of its steps."""
        return self._demands.start.progress_every_s if self._demands.start else 0.0

    def policy(self) -> StopTiming:
        """How long a stop takes."""
        start = self._demands.start
        save_s = max(self._saves_s, default=stop_timing.SAVE_GUESS_S)
        if start is None:
            return StopTiming(stop_timing.ENGINE_NONE, 0.0, save_s)
        step_s = max(self.steps_s, default=0.0)
        return stop_timing.policy_of(start, save_s, step_s, planned=self._planned())
