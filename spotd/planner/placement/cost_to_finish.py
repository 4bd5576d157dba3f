"""Estimate what finishing a job costs in each place, term by term.

A job that the policy does not steer requests offers in this order, and `spotctl plan` shows it for
every job. It ranks by the cost to finish and not by the price, because a place where machines are
preempted soon, where the work takes longer, or to which the checkpoint has to be moved costs more
than its price. Each interruption costs a start and, on average, half of a checkpoint interval at
the machine's price: E[loss] = hazard * (start + pause / 2). Without a known amount of work, a day's
work is compared. `objective: speed` compares hours instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp

from spotd.domain.market import Market
from spotd.domain.node import Node
from spotd.domain.node_history import FleetHistory
from spotd.domain.preferences import Objective
from spotd.domain.view import View
from spotd.planner.core.checkpoint_interval import ObservedLifetimes, mtbf_s, pool_beyond_zones
from spotd.planner.core.dataset_transfer import TransferCost, freight
from spotd.planner.placement.build_situation import JobSituation, situate
from spotd.planner.placement.rank import RankedOffer
from spotd.planner.spot_policy.pool_history import pool_of


@dataclass(frozen=True)
class CostToFinish:
    """The expected cost in dollars of the whole gang; `hours` is the duration.

    `egress_usd` is the checkpoint's way there, its way back by the chance of a preemption, and the
    way of the data, once or at each start if the region has no copy.
    """

    row: RankedOffer
    train_usd: float
    start_usd: float
    lost_usd: float
    egress_usd: float
    hours: float

    @property
    def total_usd(self) -> float:
        return self.train_usd + self.start_usd + self.lost_usd + self.egress_usd


def costs(
    view: View,
    market: Market,
    now_us: int,
    rows: Sequence[RankedOffer],
    running: Node | None = None,
) -> list[CostToFinish]:
    """Return the cost for every available offer in the order of `rows`.

    Where the gang runs, it has started already. Empty if the remaining work is unknown.
    """
    situated = situate(view, market, now_us, rows, running)
    if situated is None:
        return []
    lives, here = _by_pool(market.history), running.offer.key if running else ""
    return [
        _cost(situated, row, lives, _data(view, row, market), started=row.offer.key == here)
        for row in rows
        if not row.excluded and pool_of(row.offer) in situated.pools
    ]


def worths(
    view: View, market: Market, now_us: int, rows: Sequence[RankedOffer]
) -> Mapping[str, float]:
    """Return each offer's dollars, or hours for `objective: speed`, by key; lower is better.

    Empty if there is nothing to compare.
    """
    if sum(not row.excluded for row in rows) < 2:
        return {}
    situated = situate(view, market, now_us, rows, None)
    if situated is None:
        return {}
    fast = view.job.spec.preferences.objective is Objective.SPEED
    # The same work in the same places is worth the same to each job.
    asks = ("worths", situated.situation.work, fast, situated.num_nodes)
    if situated.cache is not None and (known := situated.cache.get(asks)) is not None:
        return known  # type: ignore[return-value]
    lives = _by_pool(market.history)
    free = [row for row in rows if not row.excluded]
    known_of = [row for row in free if pool_of(row.offer) in situated.pools]
    costs = [_cost(situated, r, lives, _data(view, r, market), started=False) for r in known_of]
    # Where the work could not be done by its deadline, as on spot without saves, comes last.
    worth = {row.offer.key: float("inf") for row in free}
    worth |= {one.row.offer.key: one.hours if fast else one.total_usd for one in costs}
    if situated.cache is not None:
        situated.cache[asks] = worth
    return worth


def lives_of(past: FleetHistory) -> Sequence[ObservedLifetimes]:
    """Return the fleet's machine time and losses by offer. Cached per history read."""
    cached = past.cache.get("lives")
    if cached is None:
        cached = past.cache["lives"] = tuple(_lives(past))
    return cached  # type: ignore[return-value]


def _by_pool(past: FleetHistory) -> Mapping[tuple[str, ...], Sequence[ObservedLifetimes]]:
    """Return the lifetimes that say something about an offer: those of its pool in any zone."""
    cached = past.cache.get("lives by pool")
    if cached is None:
        pools: dict[tuple[str, ...], list[ObservedLifetimes]] = {}
        for life in lives_of(past):
            pools.setdefault(pool_beyond_zones(life.offer_key), []).append(life)
        cached = past.cache["lives by pool"] = pools
    return cached  # type: ignore[return-value]


def _lives(past: FleetHistory) -> Iterable[ObservedLifetimes]:
    sums: dict[str, tuple[int, int]] = {}
    for stay in past.stays:
        if 0 < stay.began_at_us < stay.until_us:
            time_us, losses = sums.get(stay.offer_key, (0, 0))
            lived_us = stay.until_us - stay.began_at_us
            sums[stay.offer_key] = (time_us + lived_us, losses + stay.lost)
    return (ObservedLifetimes(key, *both) for key, both in sums.items())


def _data(view: View, row: RankedOffer, market: Market) -> TransferCost:
    return freight(view.job.spec, row.offer, market)


def _cost(
    situated: JobSituation,
    row: RankedOffer,
    lives: Mapping[tuple[str, ...], Sequence[ObservedLifetimes]],
    data: TransferCost,
    *,
    started: bool,
) -> CostToFinish:
    work, pool = situated.situation.work, situated.pools[pool_of(row.offer)]
    usd_per_h = row.score_microusd_per_h / 1e6
    hours = work.left_s / 3600 / pool.speed
    start_h = (work.restart_s + pool.transfer_s) / 3600
    of_pool = lives.get(pool_beyond_zones(row.offer.key), ())
    ends = hours * 3600 / mtbf_s(row.offer, of_pool, situated.num_nodes)
    lost_h = ends * (work.restart_s + work.lost_s / 2) / 3600
    first_h = 0.0 if started else start_h
    first = 0.0 if started else 1.0
    way = (pool.egress_usd - data.usd) * (first + 1 - exp(-ends))
    way += data.usd * first + data.each_usd * ends
    spent = (usd_per_h * hours, usd_per_h * first_h, usd_per_h * lost_h, way)
    return CostToFinish(row, *spent, hours + first_h + lost_h)
