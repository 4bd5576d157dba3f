"""Tell a program that prints its history from one that begins anew, by the pace of its steps.

A program that resumes may print all its earlier steps again, as from a log or a table that it
rebuilds. These come at once; steps that are trained take their time.
"""

from __future__ import annotations

from enum import Enum

from spotd.wire import StepSeries

SAME_PACE = 1.5  # steps that come this much faster than others may be trained as these are
REPLAY_PACE = 10.0  # steps that come this much faster than others are not trained
PRINT_PACE = 50.0  # steps a second; history is printed faster than that
LEAST_STEPS = 10  # of the run before; fewer show no pace
LEAST_AFTER = 5  # steps after the history, to know how fast the program trains
FAR_S = 60.0  # steps that would take so long to reach the end of the run before are trained


class Start(Enum):
    """How a program began that prints the steps of an earlier run."""

    ANEW = "anew"
    REPLAY = "replay"  # it printed its history, and goes on where that ends


class StepPace:
    """Follows how fast a program prints the steps that were printed before it. Sans I/O.

    `look_s` is the time between two looks at its output, which are no finer than that.
    """

    def __init__(self, before: StepSeries, look_s: float) -> None:
        self._before, self._look_s = before, look_s
        self._began_s: float | None = None
        self._first: tuple[float, int] | None = None
        self._seen: list[tuple[float, int]] = []  # the last three looks at which there were more
        self._reached: tuple[float, int] | None = None

    @property
    def is_past(self) -> bool:
        """Whether the program has printed the last step of the run before, or a later one."""
        return self._reached is not None

    def add(self, now_s: float, series: StepSeries | None) -> Start | None:
        """Return how the program began; None while that cannot be told."""
        self._began_s = now_s if self._began_s is None else self._began_s
        if series is None or (self._seen and series.count <= self._seen[-1][1]):
            return None
        look = (now_s, series.count)
        self._seen = [*self._seen, look][-3:]
        first = self._first = self._first or look
        if self._reached is not None:
            return self._after_the_end(self._pace_to(first), self._pace_to(self._reached), look)
        if series.last >= self._before.last:
            self._reached = look
            return None
        return self._on_the_way(first, look) if look != first else None

    def _pace_to(self, look: tuple[float, int]) -> float:
        """Return the steps a second from the program's begin to then."""
        return look[1] / (look[0] - (self._began_s or 0.0) + self._look_s)

    def _after_the_end(
        self, pace_first: float, pace: float, look: tuple[float, int]
    ) -> Start | None:
        at_s, count = self._reached or look
        after = look[1] - count
        pace_after = after / (look[0] - at_s)
        if max(pace, pace_first) <= SAME_PACE * pace_after:
            return Start.ANEW
        known = self._before.count >= LEAST_STEPS and after >= LEAST_AFTER
        return Start.REPLAY if known and pace >= REPLAY_PACE * pace_after else None

    def _on_the_way(self, first: tuple[float, int], look: tuple[float, int]) -> Start | None:
        pace_first = self._pace_to(first)
        pace = (look[1] - first[1]) / (look[0] - first[0])
        if pace_first > SAME_PACE * pace:
            return None
        left_s = (self._before.count - look[1]) / pace
        return Start.ANEW if left_s >= FAR_S or self._is_steady() else None

    def _is_steady(self) -> bool:
        """Return whether the last steps came one after the other, as no history is printed."""
        if len(self._seen) < 3:
            return False
        (a_s, a), (b_s, b), (c_s, c) = self._seen
        paces = ((b - a) / (b_s - a_s), (c - b) / (c_s - b_s))
        return max(paces) <= min(PRINT_PACE, 3 * min(paces))
