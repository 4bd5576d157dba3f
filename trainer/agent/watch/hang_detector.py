"""Detect a hang: no step for much longer than the program's own steps take.

A program that reports its steps is watched once it is known how long a step takes. Silence counts
only while this agent checks regularly, so that neither a frozen machine nor a restarting agent
makes a program look hung. If ranks report their steps separately, each is watched: a rank without
steps hangs, whatever the others report.
"""

from __future__ import annotations

from statistics import median

from trainer.agent.run.timing_stats import TimingStats
from trainer.agent.watch.ranks import RankProgress

# The requirement: no new step in five times the median step, and for at least two minutes.
SILENT_STEPS = 5.0
MIN_SILENT_S = 120.0
MIN_REPORTS = 3  # before the median means anything
MAX_GAP_S = 2.0  # a longer gap between two checks counts as this much


class HangDetector:
    """Belongs to the agent's loop. `stepping`: the program has made steps under an earlier
    agent."""

    def __init__(
        self,
        timing_stats: TimingStats,
        now: float,
        *,
        min_silent_s: float = MIN_SILENT_S,
        stepping: bool,
    ) -> None:
        self._timing_stats = timing_stats
        self._min_silent_s = min_silent_s
        self._watching = stepping
        self._checked_at = now
        self._announced_s = 0.0
        self.silent_s = 0.0
        self.ranks = RankProgress()

    def on_rank_step(self, rank: int, step: int, now: float) -> float | None:
        """Record a rank's newest step; returns the seconds of one step, if known."""
        step_s = self.ranks.on_step(rank, step, now)
        self._watching = self._watching or step_s is not None
        return step_s

    def on_message(self, *, stepped: bool) -> None:
        """Record that the program lives; with `stepped` that it has made a step."""
        if self._announced_s:
            self.ranks.reset_silence()  # the other ranks were waiting for the long operation
        self.silent_s = self._announced_s = 0.0
        self._watching = self._watching or stepped

    def allow_silence(self, for_s: float) -> None:
        """Allow silence for so long: the program has announced a long operation."""
        self.silent_s, self._announced_s = 0.0, for_s
        self.ranks.reset_silence()

    def on_idle(self, rank: int) -> None:
        """Stop watching: a training has ended, and what follows reports no steps.

        The next step of any rank starts it again.
        """
        self.ranks.remove(rank)
        self.silent_s = self._announced_s = 0.0
        self._watching = False

    def reset(self) -> None:
        """Start over for a new process, which is not watched until its first step."""
        self.silent_s = self._announced_s = 0.0
        self._watching = False
        self.ranks.clear()

    @property
    def limit_s(self) -> float:
        """The allowed silence in seconds; infinite until the step time is known."""
        steps_s = self._timing_stats.steps_s
        if not self._watching or len(steps_s) < MIN_REPORTS:
            return float("inf")
        allowed_s = self._timing_stats.report_every_s + max(
            SILENT_STEPS * median(steps_s), self._min_silent_s
        )
        return max(allowed_s, self._announced_s)

    def check(self, now: float) -> bool:
        """Return whether the program hangs."""
        passed_s = min(now - self._checked_at, MAX_GAP_S)
        self._checked_at = now
        self.silent_s += passed_s
        return max(self.silent_s, self.ranks.pass_time(passed_s)) >= self.limit_s
