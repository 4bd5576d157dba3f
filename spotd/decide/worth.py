"""What each place would cost a job until it is done, term by term; in that order offers are asked
for by a job that is not steered, and all jobs are explained.

By the cost to finish and not by the price: a place where machines are taken away soon, where the
work takes longer or to which the checkpoint has to be carried costs more than it says. Each
interruption costs a start and, on average, half of what lies between two saves, at the machine's
price: E[loss] = hazard * (start + pause / 2). Where nobody said how much there is to do, a day's
work is compared. `objective: speed` compares the hours instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp

from spotd.decide.cadence import Life, mtbf_s, pool_beyond_zones
from spotd.decide.freight import Freight, freight
from spotd.decide.placement import Ranked
from spotd.decide.seen import pool_of
from spotd.decide.situating import Situated, situate
from spotd.model import Market, Node, View
from spotd.past import Past
from spotd.wishes import Objective


@dataclass(frozen=True)
class Cost:
    """What is expected, in dollars of the whole gang; `hours` is how long it takes. `egress_usd` is
    the way of the checkpoint there and, as likely as the job is taken away from there, back; and
    that of its data, once, or with each start where its region has no copy."""

    row: Ranked
    train_usd: float
    start_usd: float
    lost_usd: float
    egress_usd: float
    hours: float

    @property
    def total_usd(self) -> float:
        return self.train_usd + self.start_usd + self.lost_usd + self.egress_usd


def costs(
    view: View, market: Market, now_us: int, rows: Sequence[Ranked], running: Node | None = None
) -> list[Cost]:
    """Of every offer that is to be had, in the order of `rows`; where the gang is it has started
    already. Empty where nobody knows how much is left to do."""
    situated = situate(view, market, now_us, rows, running)
    if situated is None:
        return []
    lives, here = _by_pool(market.past), running.offer.key if running else ""
    return [
        _cost(situated, row, lives, _data(view, row, market), started=row.offer.key == here)
        for row in rows
        if not row.excluded and pool_of(row.offer) in situated.pools
    ]


def worths(view: View, market: Market, now_us: int, rows: Sequence[Ranked]) -> Mapping[str, float]:
    """By the offer's key, lower is better: dollars, or hours for `objective: speed`. Empty where
    there is nothing to compare."""
    if sum(not row.excluded for row in rows) < 2:
        return {}
    situated = situate(view, market, now_us, rows, None)
    if situated is None:
        return {}
    fast = view.job.spec.wishes.objective is Objective.SPEED
    # The same work in the same places is worth the same to each job.
    asks = ("worths", situated.situation.work, fast, situated.num_nodes)
    if situated.kept is not None and (known := situated.kept.get(asks)) is not None:
        return known  # type: ignore[return-value]
    lives = _by_pool(market.past)
    free = [row for row in rows if not row.excluded]
    known_of = [row for row in free if pool_of(row.offer) in situated.pools]
    found = [_cost(situated, r, lives, _data(view, r, market), started=False) for r in known_of]
    # Where the work could not be done by its deadline, as on spot without saves, comes last.
    worth = {row.offer.key: float("inf") for row in free}
    worth |= {one.row.offer.key: one.hours if fast else one.total_usd for one in found}
    if situated.kept is not None:
        situated.kept[asks] = worth
    return worth


def lives_of(past: Past) -> Sequence[Life]:
    """The time that this fleet has had machines of each offer, and how many were taken away.
    Reckoned once for each reading of the past."""
    found = past.kept.get("lives")
    if found is None:
        found = past.kept["lives"] = tuple(_lives(past))
    return found  # type: ignore[return-value]


def _by_pool(past: Past) -> Mapping[tuple[str, ...], Sequence[Life]]:
    """The lives that say something of an offer: those of its pool, whatever the zone."""
    found = past.kept.get("lives by pool")
    if found is None:
        pools: dict[tuple[str, ...], list[Life]] = {}
        for life in lives_of(past):
            pools.setdefault(pool_beyond_zones(life.offer_key), []).append(life)
        found = past.kept["lives by pool"] = pools
    return found  # type: ignore[return-value]


def _lives(past: Past) -> Iterable[Life]:
    sums: dict[str, tuple[int, int]] = {}
    for stay in past.stays:
        if 0 < stay.began_at_us < stay.until_us:
            time_us, losses = sums.get(stay.offer_key, (0, 0))
            lived_us = stay.until_us - stay.began_at_us
            sums[stay.offer_key] = (time_us + lived_us, losses + stay.lost)
    return (Life(key, *both) for key, both in sums.items())


def _data(view: View, row: Ranked, market: Market) -> Freight:
    return freight(view.job.spec, row.offer, market)


def _cost(
    situated: Situated,
    row: Ranked,
    lives: Mapping[tuple[str, ...], Sequence[Life]],
    data: Freight,
    *,
    started: bool,
) -> Cost:
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
    return Cost(row, *spent, hours + first_h + lost_h)
