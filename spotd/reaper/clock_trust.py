"""Whether to trust this machine's clock: what has expired by it is terminated for good.

A clock that was set ahead makes a whole fleet expire at once. The daemon accepts such a clock only
if it stays so (`clock.BELIEF_S`), and renews the expiries soon after. So the reaper waits for
longer: by then wanted machines were renewed. It also waits after a start of the machine, whose
clock may have been wrong while it was off, and if nothing is known of an earlier sweep.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from spotd.base.clock import BELIEF_S, ticks_ns
from spotd.domain.units import S
from spotd.planner.core.reaper_policy import SKEW_S
from spotd.reaper.state_files import read, write

DOUBT_S = 2 * BELIEF_S  # the daemon's own doubt, and time for it to renew what is wanted
Moment = tuple[int, int]  # wall clock and ticks since the machine started, us


def _read_clocks() -> Moment:
    return time.time_ns() // 1000, ticks_ns() // 1000


class ClockTrust:
    """Compares how far the wall clock is ahead of the ticks with how far it was at the round
    before. Without a folder it is known to this process alone."""

    def __init__(self, folder: Path | None, clocks: Callable[[], Moment] = _read_clocks) -> None:
        self._path = None if folder is None else folder / "clock.json"
        self._clocks = clocks
        self._ahead_us, self._since_us = self._read()

    def look(self) -> tuple[int, float]:
        """The time now, us, and for how many seconds nothing may be ended by it yet."""
        wall_us, ticks_us = self._clocks()
        before_us, self._ahead_us = self._ahead_us, wall_us - ticks_us
        if before_us is None or self._ahead_us - before_us > SKEW_S * S:
            self._since_us = ticks_us
        if self._since_us is None:
            return wall_us, 0.0
        left_s = DOUBT_S - (ticks_us - self._since_us) / S
        if not 0 < left_s <= DOUBT_S:
            self._since_us = None
        return wall_us, left_s if self._since_us is not None else 0.0

    def keep(self) -> str:
        """Remember it for the next round; what went wrong, or ""."""
        return write(self._path, {"ahead_us": self._ahead_us, "since_us": self._since_us})

    def _read(self) -> tuple[int | None, int | None]:
        stored = read(self._path)
        values = [stored.get(name) if isinstance(stored, dict) else None for name in _NAMES]
        ahead_us, since_us = (value if type(value) is int else None for value in values)
        return ahead_us, since_us


_NAMES = ("ahead_us", "since_us")
