"""Describe a job and the market to the spot policy.

The description has the remaining work, the running gang, and each pool with its prices, the
transfer of the checkpoint to it, and its record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from providers.base import CapacityType, Offer
from spotd.domain.job import JobSpec
from spotd.domain.market import Market
from spotd.domain.node import Node
from spotd.domain.phase import keeps
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.planner.core.dataset_transfer import freight
from spotd.planner.core.remaining_work import left_s, lost_s, start_s, unsaved_s
from spotd.planner.core.shard_stores import HERE, StorePlace, goes_to, store_of
from spotd.planner.offers.cooldowns import NO_ROOM
from spotd.planner.placement.rank import TAKEN, RankedOffer, SharedRanking, steered
from spotd.planner.spot_policy import (
    UNSEEN,
    Pool,
    PoolRecord,
    RemainingWork,
    RunningGang,
    Sighting,
    Situation,
)
from spotd.planner.spot_policy.pool_history import found_elsewhere, pool_of, records

LATE_S = 60.0  # how late a look may come, where others take the daemon's time
LOOK_S = 60.0  # between two looks at a job; what happens in between makes it due by itself
# For what says not how much there is to do: places are compared by what a day there costs.
ASSUMED_S = 86_400.0
CARRY_B_PER_S = 1.25e9  # between clouds or regions: 10 Gb/s, as SkyPilot reckons


@dataclass(frozen=True)
class JobSituation:
    """The policy's situation of one job, with the offers behind it.

    `spot` and `lasting` are the offers to request for a pool, by kind.
    """

    situation: Situation
    spot: dict[str, RankedOffer]
    lasting: dict[str, RankedOffer]
    hopeful: bool  # spot is permitted and sold, though perhaps not to be had now
    num_nodes: int = 1
    cache: dict[object, object] | None = None  # what follows for all jobs that have these pools

    @cached_property
    def pools(self) -> dict[str, Pool]:
        """Return the pools by key."""
        return {pool.key: pool for pool in self.situation.pools}


def situate(
    view: View, market: Market, now_us: int, rows: Sequence[RankedOffer], running: Node | None
) -> JobSituation | None:
    """Return the job's situation; None without offers or if the remaining work is unknown.

    `rows` are the offers that fit, `running` is a machine of the gang that trains or starts and is
    not being taken away. An excluded offer has no price, except where the gang is. Spot that was
    just refused or preempted keeps its price: it may come back, and counts as down until it is
    requested again.
    """
    spec = view.job.spec
    here = running.offer if running is not None else None
    left = left_s(view, speed_of(spec, _measured_on(view)))
    assumed = False
    if left is None:
        if steered(spec):
            return None
        left, assumed = ASSUMED_S, True
    sold, pools, cache = _pools(view, market, now_us, rows, here)
    if not pools:
        return None
    work = _work(view, market, now_us, left, running)
    if assumed:
        work = replace(work, deadline_s=None)
    gang = _running(running, work.restart_s, now_us) if running is not None else None
    elsewhere = found_elsewhere(market.history)
    situation = Situation(now_us / S, work, pools, gang, elsewhere=elsewhere)
    return JobSituation(
        situation, sold.spot, sold.lasting, sold.hopeful, spec.resources.num_nodes, cache
    )


@dataclass(frozen=True)
class _OffersByPool:
    """The offers that fit, by pool: spot and otherwise, and spot that is down as far as known."""

    offers: dict[str, Offer]
    spot: dict[str, RankedOffer]
    lasting: dict[str, RankedOffer]
    down: dict[str, RankedOffer]
    hopeful: bool

    def has(self, pool: str) -> bool:
        return pool in self.spot or pool in self.lasting or pool in self.down


def _pools(
    view: View, market: Market, now_us: int, rows: Sequence[RankedOffer], here: Offer | None
) -> tuple[_OffersByPool, tuple[Pool, ...], dict[object, object] | None]:
    """Return the offers on sale, also grouped as pools.

    Computed once for all jobs with the same request whose checkpoint is in the same place.
    """
    spec, size_b, lies = view.job.spec, _bytes(view), _lies(view, market)
    sold = _sold(view, rows, here)
    fresh = bool(spec.limits.deadline_us) and not keeps(spec.checkpoint)
    if fresh and sold.lasting:
        # Each end of a machine would begin it anew: no date can be met like that.
        sold = replace(sold, spot={}, down={}, hopeful=False)
    common = isinstance(rows, SharedRanking) and rows.cache.get("sold") is sold
    asks = ("pools", size_b, lies, spec.preferences.speeds)
    if common and isinstance(rows, SharedRanking) and (cached := rows.cache.get(asks)) is not None:
        return cached  # type: ignore[return-value]
    known = records(market.history)
    pools = tuple(
        _pool(offer, spec, market, (size_b, lies), sold, _record(known, key, sold, now_us))
        for key, offer in sold.offers.items()
        if sold.has(key) or (here is not None and key == pool_of(here))
    )
    if common and isinstance(rows, SharedRanking):
        cache: dict[object, object] = {}
        rows.cache[asks] = sold, pools, cache
        return sold, pools, cache
    return sold, pools, None


def _sold(view: View, rows: Sequence[RankedOffer], here: Offer | None) -> _OffersByPool:
    """Return the offers by pool, shared by all jobs with the same request.

    A job whose gang is in a place that no other may use has its own.
    """
    if not isinstance(rows, SharedRanking):
        return _sorted(view, rows, here)
    cached = rows.cache.get("sold")
    if not isinstance(cached, _OffersByPool):
        cached = rows.cache["sold"] = _sorted(view, rows, None)
    if here is None:
        return cached
    of_it = (of.get(pool_of(here)) for of in (cached.spot, cached.lasting))
    if any(row is not None and row.offer.key == here.key for row in of_it):
        return cached
    return _sorted(view, rows, here)


def _sorted(view: View, rows: Iterable[RankedOffer], here: Offer | None) -> _OffersByPool:
    by_pool = _OffersByPool({}, {}, {}, {}, hopeful=False)
    hopeful = False
    for row in rows:
        pool, is_spot = pool_of(row.offer), row.offer.capacity_type is CapacityType.SPOT
        down = is_spot and bool(row.excluded) and _has_no_room(row, view)
        hopeful = hopeful or (is_spot and (not row.excluded or down or bool(row.until_us)))
        by_pool.offers.setdefault(pool, row.offer)
        if not row.excluded or (here is not None and row.offer.key == here.key):
            (by_pool.spot if is_spot else by_pool.lasting).setdefault(pool, row)
        elif down:
            by_pool.down.setdefault(pool, row)
    if here is not None:
        by_pool.offers.setdefault(pool_of(here), here)
    return replace(by_pool, hopeful=hopeful)


def _has_no_room(row: RankedOffer, view: View) -> bool:
    """Return whether the offer was refused for lack of room, or preempted, so recently.

    A machine there with a notice counts, too. A machine that has ended is no evidence about later
    requests.
    """
    if row.code == TAKEN:
        there = (node for node in view.nodes if node.state is not NodeState.GONE)
        ours = [node for node in there if node.offer.key == row.offer.key]
        return any(notice.takes_machine for node in ours for notice in node.notices)
    return row.code in NO_ROOM


def _record(
    known: Mapping[str, PoolRecord], pool: str, sold: _OffersByPool, now_us: int
) -> PoolRecord:
    """Return the pool's record; unavailable spot counts as seen down until it is requested."""
    record = known.get(pool, UNSEEN)
    if pool in sold.down and pool not in sold.spot:
        return record.after(Sighting(now_us / S, up=False))
    return record


def speed_of(spec: JobSpec, offer: Offer | None) -> float:
    """Return the job's speed there relative to its first alternative; 1.0 if unknown."""
    for speed in spec.preferences.speeds:
        same = offer is not None and speed.accelerator.lower() == offer.accelerator.lower()
        if same and offer is not None and speed.count <= offer.accelerator_count:
            return speed.times
    return 1.0


def _measured_on(view: View) -> Offer | None:
    chosen = [node for node in view.nodes if node.chosen]
    return chosen[-1].offer if chosen else None


def _lies(view: View, market: Market) -> StorePlace:
    """Return where the checkpoint is: near the machine that made it."""
    before, spec = _measured_on(view), view.job.spec
    return store_of(spec, market) if before is None else goes_to(before, spec, market)


def _bytes(view: View) -> int:
    return max((one.bytes for one in view.saved), default=0) or view.job.spec.checkpoint.size_bytes


def _work(
    view: View, market: Market, now_us: int, left: float, running: Node | None
) -> RemainingWork:
    spec = view.job.spec
    offer = running.offer if running is not None else None
    unsaved = unsaved_s(running, view, now_us) if running is not None else 0.0
    pause = lost_s(offer, spec, market) if offer is not None else spec.checkpoint.every_s
    # HEAD counts what is saved alone; what was trained since is done, until it is lost.
    trained_s = min(unsaved, pause, left)
    return RemainingWork(
        left_s=left - trained_s,
        deadline_s=spec.limits.deadline_us / S if spec.limits.deadline_us else None,
        restart_s=start_s(market.history, view.job.id),
        unsaved_s=unsaved,
        lost_s=pause if keeps(spec.checkpoint) else 0.0,
        stop_s=spec.timeouts.stop_grace_s,
        granted_s=market.timing.granted_s,
        look_s=LOOK_S,
        late_s=LATE_S,
    )


def _running(node: Node, restart_s: float, now_us: int) -> RunningGang:
    since_us = node.machine.launched_at_us or node.requested_at_us
    waited_s = (now_us - node.requested_at_us) / S
    starting_s = 0.0 if node.training.first_step_at_us else max(restart_s - waited_s, 0.0)
    sold_as = node.offer.capacity_type
    capacity = sold_as if sold_as is CapacityType.SPOT else CapacityType.ON_DEMAND
    return RunningGang(pool_of(node.offer), capacity, since_us / S, starting_s)


def _pool(
    offer: Offer,
    spec: JobSpec,
    market: Market,
    state: tuple[int, StorePlace],
    sold: _OffersByPool,
    record: PoolRecord,
) -> Pool:
    key = pool_of(offer)
    egress_usd, transfer_s = _way(offer, market, *state)
    data = freight(spec, offer, market)
    return Pool(
        key=key,
        region=f"{offer.provider}/{offer.region}",
        spot_usd_per_h=_usd(sold.spot.get(key) or sold.down.get(key)),
        on_demand_usd_per_h=_usd(sold.lasting.get(key)),
        egress_usd=egress_usd + data.usd,
        transfer_s=transfer_s + data.size_bytes / CARRY_B_PER_S,
        speed=speed_of(spec, offer),
        record=record,
    )


def _usd(row: RankedOffer | None) -> float | None:
    """Return the hourly price of the whole gang with the egress of its saves."""
    return None if row is None else row.score_microusd_per_h / 1e6


def checkpoint_way(view: View, offer: Offer, market: Market) -> tuple[float, float]:
    """Return the dollars and seconds of transferring the job's checkpoint there from its store."""
    return _way(offer, market, _bytes(view), _lies(view, market))


def _way(offer: Offer, market: Market, size_b: int, store: StorePlace) -> tuple[float, float]:
    """Return the dollars and seconds of transferring the checkpoint there from its store. Between
    two regions of a cloud no price is known."""
    if offer.local or store.cloud == HERE or not size_b:
        return 0.0, 0.0
    same = store.cloud == offer.cloud
    if same and store.region in ("", offer.region):
        return 0.0, 0.0
    each = 0 if same else market.stores.egress_microusd_per_gb.get(store.cloud, 0)
    return size_b / 1e9 * each / 1e6, size_b / CARRY_B_PER_S
