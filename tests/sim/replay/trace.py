"""One job on one stretch of a trace, as both sides play it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import gcd
from pathlib import Path
from typing import Any

from bench.policy_ours import region

GRAIN_S = 30  # at most: what a decision sets going is done by then
TYPE = "8xh100"


@dataclass(frozen=True)
class Case:
    """What `spotbench.suites` calls a case. `avail` and `spot` are by zone and tick from the start
    of its window: whether the gang could be had, and dollars an hour. Times are seconds."""

    name: str
    zones: tuple[str, ...]
    avail: tuple[tuple[bool, ...], ...]
    spot: tuple[tuple[float, ...], ...]
    on_demand: tuple[float, ...]
    gap_s: int
    deadline_s: int
    work_s: int
    restart_s: int

    def __post_init__(self) -> None:
        """Raises ValueError where it cannot be played."""
        if self.ticks > min(len(one) for one in (*self.avail, *self.spot)):
            raise ValueError(f"{self.name}: its trace ends before its deadline")
        if self.grain_s < 3:
            text = "gap and restart are to be multiples of three seconds or more"
            raise ValueError(f"{self.name}: a tick of {self.gap_s} s, {self.restart_s} s: {text}")

    @property
    def ticks(self) -> int:
        return self.deadline_s // self.gap_s

    @property
    def grain_s(self) -> int:
        """A part of both a tick and a restart: both sides begin and end at multiples of it."""
        common = gcd(self.gap_s, self.restart_s)
        return next(part for part in range(min(common, GRAIN_S), 0, -1) if common % part == 0)

    def key(self, zone: int) -> str:
        """Of the pool, as the daemon names it."""
        return f"{region(self.zones[zone])}/{self.zones[zone]}/{TYPE}"

    def up(self, zone: int, tick: int) -> bool:
        """After the last tick, as in it."""
        return self.avail[zone][min(tick, len(self.avail[zone]) - 1)]

    def price(self, zone: int, tick: int) -> float:
        return self.spot[zone][min(tick, len(self.spot[zone]) - 1)]


def made(
    name: str,
    avail: dict[str, str],
    *,
    spot: float | Sequence[float] = 30.0,
    on_demand: float = 98.0,
    gap_s: int = 600,
    restart_s: int = 720,
    work_h: float = 1.0,
    deadline_h: float = 2.0,
) -> Case:
    """One made up: of each zone a word of `#` (to be had) and `.`, one for each tick."""
    prices = [spot] * len(avail) if isinstance(spot, float) else spot
    return Case(
        name=name,
        zones=tuple(avail),
        avail=tuple(tuple(mark == "#" for mark in word) for word in avail.values()),
        spot=tuple(
            (price,) * len(word) for price, word in zip(prices, avail.values(), strict=True)
        ),
        on_demand=(on_demand,) * len(avail),
        gap_s=gap_s,
        deadline_s=int(deadline_h * 3600),
        work_s=int(work_h * 3600),
        restart_s=restart_s,
    )


def cases(traces: Path, suite: str, part: str) -> Iterator[Case]:
    """All of a suite of DIR."""
    for number, one in enumerate(raw(traces, suite, part)):
        yield read(f"{suite}/{part}/{number} {one['group']} {one['series']}", one)


def raw(traces: Path, suite: str, part: str) -> list[dict[str, Any]]:
    """A suite's cases as DIR, which holds `spotbench`, has them."""
    if str(traces) not in sys.path:
        sys.path.insert(0, str(traces))
    found: list[dict[str, Any]] = import_module("spotbench.suites").suite(suite, part)
    return found


def read(name: str, one: dict[str, Any]) -> Case:
    """One of them. Prices are rounded to micro-USD, for both sides: the daemon knows no less."""
    start, gap_s = one["start"], round(one["gap"])
    ticks = int(one["deadline_s"] // one["gap"])
    window = slice(start, start + ticks)
    return Case(
        name=name,
        zones=tuple(one["zones"]),
        avail=tuple(tuple(bool(up) for up in row[window]) for row in one["avail"]),
        spot=tuple(tuple(round(price, 6) for price in row[window]) for row in one["spot"]),
        on_demand=tuple(round(price, 6) for price in one["od_price"]),
        gap_s=gap_s,
        deadline_s=round(one["deadline_s"]),
        work_s=round(one["work_s"]),
        restart_s=round(one["d_s"]),
    )
