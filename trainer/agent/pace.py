"""How long a step and a save of this program take, as far as it has shown."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from trainer.agent import drain
from trainer.agent.demands import Demands
from trainer.agent.drain import Policy
from trainer.agent.recall import REPORTS, SAVES, Fact, Recall


class Pace:
    """`step` is the newest that the program has told of."""

    def __init__(
        self, past: Recall, demands: Demands, planned: Callable[[], bool] = lambda: False
    ) -> None:
        self.step = past.step
        self._demands, self._planned = demands, planned
        self._saves_s: deque[float] = deque(past.saves_s, maxlen=SAVES)
        self.steps_s: deque[float] = deque(past.steps_s, maxlen=REPORTS)  # of one, by report

    def note(self, found: Fact) -> None:
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

    def policy(self) -> Policy:
        """How long a stop takes."""
        start = self._demands.start
        save_s = max(self._saves_s, default=drain.SAVE_GUESS_S)
        if start is None:
            return Policy(drain.ENGINE_NONE, 0.0, save_s)
        step_s = max(self.steps_s, default=0.0)
        return drain.policy_of(start, save_s, step_s, planned=self._planned())
