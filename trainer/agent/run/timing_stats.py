"""Measured durations of this program's steps and saves."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from trainer.agent.base import stop_timing
from trainer.agent.base.desired_state import DesiredState
from trainer.agent.base.stop_timing import StopTiming
from trainer.agent.run.journal_replay import MAX_REPORTS, MAX_SAVES, JournalReplay, WorkerFact


class TimingStats:
    """Recent durations. `step` is the newest step that the program has reported."""

    def __init__(
        self,
        replay: JournalReplay,
        desired: DesiredState,
        planned: Callable[[], bool] = lambda: False,
    ) -> None:
        self.step = replay.step
        self._desired, self._planned = desired, planned
        self._saves_s: deque[float] = deque(replay.saves_s, maxlen=MAX_SAVES)
        self.steps_s: deque[float] = deque(replay.steps_s, maxlen=MAX_REPORTS)  # mean per report

    def add(self, fact: WorkerFact) -> None:
        """Add the measurements of one message."""
        if fact.step is not None:
            self.step = fact.step
        if fact.save_s is not None:
            self._saves_s.append(fact.save_s)
        if fact.step_s is not None:
            self.steps_s.append(fact.step_s)

    @property
    def report_every_s(self) -> float:
        """The interval of the program's step reports, in seconds."""
        return self._desired.start.program.progress_every_s if self._desired.start else 0.0

    def stop_timing(self) -> StopTiming:
        """Return how long a stop takes."""
        start = self._desired.start
        save_s = max(self._saves_s, default=stop_timing.DEFAULT_SAVE_S)
        if start is None:
            return StopTiming(stop_timing.ENGINE_NONE, 0.0, save_s)
        step_s = max(self.steps_s, default=0.0)
        return stop_timing.stop_timing_of(start, save_s, step_s, planned=self._planned())
