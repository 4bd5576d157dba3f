"""Detect a rank that is slower than the others, which wait for it at every step.

Ranks that train together report the same step time, because each waits for the slowest. They differ
in the time that each needs before the first collective: `ranks_s` of a report, in seconds a step,
one value per rank. A rank is a straggler if the others need less than RATIO of its time in each of
CHECKS windows of CHECK_S (the rule and values of slow training: see
spotd.planner.core.slow_detection). It is reported once per round of checks for as long as it lasts.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from trainer.agent.base.health_verdict import HealthWarning

STRAGGLER = "straggler"
RATIO = 0.6
CHECKS = 4
CHECK_S = 30.0
MIN_STEP_S = 0.005  # below that, a step is too short for its time to mean anything
WARM_UP_S = 180.0  # compiling and caches, after the first report


class StragglerDetector:
    """Receives each report. Sans I/O; `now` is in monotonic seconds."""

    def __init__(self, check_s: float = CHECK_S, warm_up_s: float = WARM_UP_S) -> None:
        self._check_s = check_s
        self._warm_up_s = warm_up_s
        self._started_at: float | None = None
        self._window_at = 0.0
        self._sums: list[float] = []
        self._reports = 0
        self._slow: list[tuple[int, float]] = []  # recent windows: the slowest rank, others' share

    def begin(self) -> None:
        """Start over for a new program."""
        self._started_at = None
        self._start_window(0.0)
        self._slow.clear()

    def add(self, ranks_s: Sequence[float], per_node: int, now: float) -> list[HealthWarning]:
        """Add a report and return the warnings. `per_node` is the number of ranks per machine, 0 if
        unknown."""
        if len(ranks_s) < 2 or (self._sums and len(self._sums) != len(ranks_s)):
            self.begin()
            return []
        if self._started_at is None:
            self._started_at = now
            self._start_window(now + self._warm_up_s)
        if now < self._window_at:
            return []
        sums = self._sums or [0.0] * len(ranks_s)
        self._sums = [total + more for total, more in zip(sums, ranks_s, strict=True)]
        self._reports += 1
        if now - self._window_at < self._check_s:
            return []
        warnings = self._evaluate(per_node)
        self._start_window(now)
        return warnings

    def _start_window(self, begin: float) -> None:
        self._window_at, self._sums, self._reports = begin, [], 0

    def _evaluate(self, per_node: int) -> list[HealthWarning]:
        means = [total / self._reports for total in self._sums]
        slowest = max(range(len(means)), key=means.__getitem__)
        others = median(means[:slowest] + means[slowest + 1 :])
        share = others / means[slowest] if means[slowest] > 0 else 1.0
        if (
            share >= RATIO
            or means[slowest] < MIN_STEP_S
            or (self._slow and self._slow[0][0] != slowest)
        ):
            self._slow.clear()
        if share >= RATIO or means[slowest] < MIN_STEP_S:
            return []
        self._slow.append((slowest, share))
        if len(self._slow) < CHECKS:
            return []
        text = f"rank {slowest} needs {means[slowest]:.3g} s by itself for a step, and the others"
        text = f"{text} {others:.3g} s: they wait for it at every step"
        data = {"rank": slowest, "rank_s": means[slowest], "others_s": others}
        node = {"node": slowest // per_node} if per_node > 0 else {}
        self._slow.clear()
        return [HealthWarning(STRAGGLER, text, {**data, **node})]
