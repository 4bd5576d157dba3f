"""Observations of spot availability by pool, and their resampling to a grid like recorded traces.

Observations are those that the policy learns from (`spotd.planner.spot_policy.pool_history`): spot
machines that were held, preempted or lost, and launches refused for lack of capacity. Nothing is
probed: without a request nothing is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spotd.history.interruption_stats import MachineLife
from spotd.planner.spot_policy.pool_history import NO_ROOM, pool_key

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SPOT = "/spot"


@dataclass(frozen=True)
class PoolObservations:
    """The observations of one pool (provider/region/zone/type).

    `held_us` are (since, until) of machines that it granted, `missed_us` when it refused or
    preempted one.
    """

    pool: str
    cloud: str
    accelerator: str
    accelerator_count: int
    held_us: tuple[tuple[int, int], ...] = ()
    missed_us: tuple[int, ...] = ()


def observations(lives: Iterable[MachineLife]) -> list[PoolObservations]:
    """Return the pools in which spot was requested and an answer is known, by name."""
    pools: dict[str, list[MachineLife]] = {}
    for life in lives:
        answered = life.launched_us or life.refused == NO_ROOM
        if life.offer_key.endswith(_SPOT) and answered:
            pools.setdefault(pool_key(life.offer_key), []).append(life)
    return [_pool_observations(pool, pools[pool]) for pool in sorted(pools)]


def _pool_observations(pool: str, lives: Sequence[MachineLife]) -> PoolObservations:
    newest = lives[-1]
    held = [
        (life.launched_us, max(life.launched_us, life.ended_us))
        for life in lives
        if life.launched_us
    ]
    missed = [life.requested_us for life in lives if not life.launched_us]
    missed += [max(life.launched_us, life.ended_us) for life in lives if life.interrupted]
    kind = (newest.cloud, newest.accelerator, newest.accelerator_count)
    return PoolObservations(pool, *kind, tuple(sorted(held)), tuple(sorted(missed)))


@dataclass(frozen=True)
class Grid:
    """`ticks` ticks of `gap_us` from `first_us` on, which is a multiple of it."""

    first_us: int
    gap_us: int
    ticks: int

    def tick(self, at_us: int) -> int:
        """Return the tick that contains a time; it may be outside of the grid."""
        return (at_us - self.first_us) // self.gap_us

    @property
    def hours(self) -> float:
        return self.ticks * self.gap_us / 3.6e9


def grid_over(
    pools: Iterable[PoolObservations], gap_us: int, stale_us: int, since_us: int, until_us: int
) -> Grid:
    """Return the whole ticks from the first observation of any pool to where the last one is stale.

    It has no ticks if nothing lies within the bounds.
    """
    times = [at_us for pool in pools for held in pool.held_us for at_us in held]
    times += [at_us for pool in pools for at_us in pool.missed_us]
    inside = [min(max(at_us, since_us), until_us) for at_us in times]
    first = -(-since_us // gap_us)  # the first whole one
    last = until_us // gap_us
    if inside:
        first = max(first, min(inside) // gap_us)
        last = min(last, max(inside) // gap_us + stale_us // gap_us + 1)
    return Grid(first * gap_us, gap_us, max(0, last - first) if inside else 0)


def sample_availability(
    pool: PoolObservations, grid: Grid, stale_us: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return (avail, seen), one value per tick.

    A tick in which a machine was refused or preempted is 0, whatever else happened in it; one in
    which a machine was held is 1. After that the last value holds, and counts as seen for
    `stale_us`. Before any observation both are 0.
    """
    import numpy as np  # noqa: PLC0415  not loaded by a daemon that exports nothing

    up, down = np.zeros(grid.ticks, dtype=bool), np.zeros(grid.ticks, dtype=bool)
    for since_us, until_us in pool.held_us:
        up[max(0, grid.tick(since_us)) : max(0, grid.tick(until_us) + 1)] = True
    for at_us in pool.missed_us:
        if 0 <= (tick := grid.tick(at_us)) < grid.ticks:
            down[tick] = True
    ticks = np.arange(grid.ticks)
    newest = np.maximum.accumulate(np.where(up | down, ticks, -1))
    known = newest >= 0
    avail = known & (up & ~down)[newest]
    fresh = known & ((ticks - newest) * grid.gap_us <= stale_us)
    return avail.astype(np.uint8), fresh.astype(np.uint8)


def sample_prices(points: Sequence[tuple[int, int]], grid: Grid) -> NDArray[np.float32]:
    """Return the USD per hour at the start of each tick.

    `points` are (time, micro-USD per hour) in order, at least one. The first one also applies
    before its time.
    """
    import numpy as np  # noqa: PLC0415  as above

    begins_us = grid.first_us + np.arange(grid.ticks, dtype=np.int64) * grid.gap_us
    times = np.array([at_us for at_us, _ in points], dtype=np.int64)
    dollars = np.array([price for _, price in points], dtype=np.float64) / 1e6
    index = np.searchsorted(times, begins_us, side="right") - 1
    return dollars[np.maximum(index, 0)].astype(np.float32)
