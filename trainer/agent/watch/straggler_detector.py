"""Whether one rank is slower than the others, which then wait for it at every step.

Ranks that train together report the same time for a step, because each waits for the slowest. What
tells them apart is the time that each needs by itself, before the first collective: `ranks_s` of a
report, seconds a step, one for each rank. A rank straggles when the others need less than RATIO of
its time in each of CHECKS windows of CHECK_S (the rule and the numbers of slow training: see
spotd.planner.core.slow_detection). Told once a round of checks, for as long as it lasts.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from trainer.agent.base.warnings import HealthWarning

STRAGGLER = "straggler"
RATIO = 0.6
CHECKS = 4
CHECK_S = 30.0
LEAST_S = 0.005  # below that, a step is too short for its time to mean anything
WARM_UP_S = 180.0  # compiling and caches, after the first report


class StragglerDetector:
    """Fed with each report. Sans I/O; `now` is monotonic seconds."""

    def __init__(self, check_s: float = CHECK_S, warm_up_s: float = WARM_UP_S) -> None:
        self._check_s = check_s
        self._warm_up_s = warm_up_s
        self._begun_at: float | None = None
        self._window_at = 0.0
        self._sums: list[float] = []
        self._reports = 0
        self._slow: list[tuple[int, float]] = []  # of the last windows: the slowest rank, its share

    def begin(self) -> None:
        """Another program."""
        self._begun_at = None
        self._drop_window(0.0)
        self._slow.clear()

    def hear(self, ranks_s: Sequence[float], per_node: int, now: float) -> list[HealthWarning]:
        """One report; what is to be told of it. `per_node`: ranks of each machine, 0 not known."""
        if len(ranks_s) < 2 or (self._sums and len(self._sums) != len(ranks_s)):
            self.begin()
            return []
        if self._begun_at is None:
            self._begun_at = now
            self._drop_window(now + self._warm_up_s)
        if now < self._window_at:
            return []
        sums = self._sums or [0.0] * len(ranks_s)
        self._sums = [total + more for total, more in zip(sums, ranks_s, strict=True)]
        self._reports += 1
        if now - self._window_at < self._check_s:
            return []
        found = self._judge(per_node)
        self._drop_window(now)
        return found

    def _drop_window(self, begin: float) -> None:
        self._window_at, self._sums, self._reports = begin, [], 0

    def _judge(self, per_node: int) -> list[HealthWarning]:
        means = [total / self._reports for total in self._sums]
        worst = max(range(len(means)), key=means.__getitem__)
        others = median(means[:worst] + means[worst + 1 :])
        share = others / means[worst] if means[worst] > 0 else 1.0
        if share >= RATIO or means[worst] < LEAST_S or (self._slow and self._slow[0][0] != worst):
            self._slow.clear()
        if share >= RATIO or means[worst] < LEAST_S:
            return []
        self._slow.append((worst, share))
        if len(self._slow) < CHECKS:
            return []
        text = f"rank {worst} needs {means[worst]:.3g} s by itself for a step, and the others"
        text = f"{text} {others:.3g} s: they wait for it at every step"
        data = {"rank": worst, "rank_s": means[worst], "others_s": others}
        node = {"node": worst // per_node} if per_node > 0 else {}
        self._slow.clear()
        return [HealthWarning(STRAGGLER, text, {**data, **node})]
