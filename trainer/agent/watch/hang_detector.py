"""Whether training hangs: no step for longer than its own steps make likely.

A program that reports its steps is watched as soon as it has shown how long one takes. What counts
as silence is the time in which this agent looked and heard nothing of it, so that neither a machine
that was frozen nor an agent that was away makes a program hang. Where its ranks tell of their steps
one by one, each of them is watched: one that makes none hangs, whatever the others say.
"""

from __future__ import annotations

from statistics import median

from trainer.agent.run.timing_stats import TimingStats
from trainer.agent.watch.ranks import Ranks

# Required: no new step in five times the median one, and in two minutes at least.
STEPS = 5.0
LEAST_S = 120.0
MIN_REPORTS = 3  # before the median means anything
GLANCE_S = 2.0  # more than that between two looks, and nobody looked in between


class StepWatch:
    """Belongs to the agent's loop. `stepping`: the program of an earlier agent does."""

    def __init__(
        self, pace: TimingStats, now: float, *, least_s: float = LEAST_S, stepping: bool
    ) -> None:
        self._pace = pace
        self._least_s = least_s
        self._watching = stepping
        self._looked_at = now
        self._leave_s = 0.0
        self.silent_s = 0.0
        self.ranks = Ranks()

    def hear_rank(self, rank: int, step: int, now: float) -> float | None:
        """One rank tells of its newest step; how long one took, in seconds, if that is known."""
        step_s = self.ranks.hear(rank, step, now)
        self._watching = self._watching or step_s is not None
        return step_s

    def hear(self, *, stepped: bool) -> None:
        """The program says something: a step, or anything else that shows that it lives."""
        if self._leave_s:
            self.ranks.excuse()  # the others waited for what is over now
        self.silent_s = self._leave_s = 0.0
        self._watching = self._watching or stepped

    def excuse(self, for_s: float) -> None:
        """The program says that it will be at work for so long before its next word."""
        self.silent_s, self._leave_s = 0.0, for_s
        self.ranks.excuse()

    def forget(self) -> None:
        """Another process begins: until its first step nothing is known of it."""
        self.silent_s = self._leave_s = 0.0
        self._watching = False
        self.ranks.forget()

    @property
    def limit_s(self) -> float:
        """How long it may be silent; infinite while its steps are not known."""
        steps_s = self._pace.steps_s
        if not self._watching or len(steps_s) < MIN_REPORTS:
            return float("inf")
        allowed_s = self._pace.report_every_s + max(STEPS * median(steps_s), self._least_s)
        return max(allowed_s, self._leave_s)

    def look(self, now: float) -> bool:
        """Whether it hangs."""
        passed_s = min(now - self._looked_at, GLANCE_S)
        self._looked_at = now
        self.silent_s += passed_s
        return max(self.silent_s, self.ranks.pass_time(passed_s)) >= self.limit_s
