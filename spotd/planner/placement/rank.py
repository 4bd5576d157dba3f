"""Rank offers: filter by what the job needs, then order by expected price."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import lru_cache

from providers.base import Offer
from providers.dollars import format_microusd
from spotd.domain.fast_replace import changed
from spotd.domain.job import JobSpec
from spotd.domain.market import Market
from spotd.domain.node_history import UNKNOWN
from spotd.domain.preferences import Objective
from spotd.planner.core.dataset_transfer import freight
from spotd.planner.core.gangs import shrinks
from spotd.planner.core.reservation_end import too_short
from spotd.planner.core.shard_stores import egress_microusd_per_h, requests_microusd_per_h
from spotd.planner.offers.cooldowns import (
    CAP_S,
    OF_ONE_JOB,
    STEERED_CAP_S,
    Spoiled,
    cooldown_until_us,
    spoiled_places,
    touches,
)
from spotd.planner.offers.preemptions import shunned
from spotd.planner.offers.price_sanity import DOUBTED
from spotd.planner.offers.residency import out_of_place

# Why an offer is not to be had, beside the codes of cooldowns.
DISABLED = "Disabled"
TOO_DEAR = "TooDear"
TAKEN = "Taken"
SLOW = "SlowNetwork"
RESIDENCE = "Residence"
_SLOWLY = "spotd.slow_network: true takes it"
ENDS = "EndsSoon"
TURN = "AnothersTurn"
FLAT = "NoDiscount"
FREIGHT = "Freight"
NEUTRAL_PCT = 10  # of machines that were taken back, if unknown
NEUTRAL = 5  # the score, of 1 to 10, that an offer without one counts as
NOTHING: Mapping[str, float] = {}
_WHY = ("excluded", "until_us", "code")  # of a Ranked
# Excluded, of a taker, refused before, preference, worth and price, risk, key.
_Order = tuple[bool, bool, bool, tuple[int, int], tuple[float, int], tuple[int, int], str]


@dataclass(frozen=True)
class RankedOffer:
    """An offer that fits, with its score (lower is better) or why it is not available now.

    `until_us` is when the reason may pass; 0 if it does not pass by itself. `code` is the reason in
    one word. `egress_microusd_per_h` is the cost of its saves that leave the cloud, None if
    unknown; it and the requests of saves are part of the score.
    """

    offer: Offer
    score_microusd_per_h: int
    excluded: str = ""
    until_us: int = 0
    code: str = ""
    egress_microusd_per_h: int | None = None


def steered(spec: JobSpec) -> bool:
    """Return whether the policy decides when and where to request and when to move.

    It needs to know the amount of work. Otherwise it only ranks: an order in the job file takes
    precedence over any estimate, and a gang that shrinks and grows has no single pace.
    """
    wants, preferences = spec.resources, spec.preferences
    named = wants.ordered or wants.capacity_ordered or shrinks(spec)
    return preferences.measurable and not named and preferences.objective is Objective.COST


def rank(
    spec: JobSpec,
    market: Market,
    now_us: int,
    taken: Iterable[str] = (),
    takers: frozenset[str] = frozenset(),
    job_id: str = "",
    asked: frozenset[str] = frozenset(),
    worth: Mapping[str, float] = NOTHING,
) -> list[RankedOffer]:
    """Return every offer that fits, the best first, unavailable ones last.

    Jobs with the same request share the returned list; do not change it.

    `taken` are offer keys that must not be requested: of a machine that is being preempted, or of a
    request in progress. `takers` are providers that preempted too often: their spot ranks last.
    `asked` are offer keys that refused this attempt: others come before them, because a job without
    a machine loses more by waiting than by a price. `job_id` is the job's, once it has one. With
    `ordered` an earlier alternative beats a cheaper one, and so does an earlier capacity type with
    `capacity_ordered`. `worth` is a score by offer key that takes precedence over the price
    (planner/placement/cost_to_finish.py), for all offers or none. Among equal prices the vendor's
    higher placement score comes first, then the lower share of preempted machines.
    """
    board = _board(spec, market, now_us)
    barred, own = board.keys.intersection(taken), _own(market, job_id)
    if not (barred or takers or asked or own):
        return board.rows if not worth else board.ordered(worth)
    spoiled = spoiled_places(market.refusals, job_id)
    rows: list[tuple[_Order, RankedOffer]] = []
    for place in board.places:
        offer, row = place.row.offer, place.row
        if offer.key in barred or own:
            row = _ranked(offer, spec, market, now_us, barred, spoiled)
        last, again = shunned(offer, takers), offer.key in asked
        rows.append((place.order(row, worth, last=last, again=again), row))
    rows.sort(key=lambda one: one[0])
    return [row for _, row in rows]


class SharedRanking(list[RankedOffer]):
    """The ranking that every job with the same request shares; `cache` has what follows from
    it."""

    def __init__(self, rows: Iterable[RankedOffer]) -> None:
        super().__init__(rows)
        self.cache: dict[object, object] = {}


@dataclass(frozen=True)
class _OfferFit:
    """An offer as it is for every job with the same request."""

    row: RankedOffer
    preference: tuple[int, int]
    risk: tuple[int, int]

    def order(
        self,
        row: RankedOffer,
        worth: Mapping[str, float],
        *,
        last: bool = False,
        again: bool = False,
    ) -> _Order:
        key = row.offer.key
        value = (worth.get(key, 0.0), row.score_microusd_per_h)
        return bool(row.excluded), last, again, self.preference, value, self.risk, key


@dataclass(frozen=True)
class _RankingTable:
    """The offers that fit such jobs, in the order for a job of which nothing else is known."""

    places: tuple[_OfferFit, ...]
    rows: SharedRanking
    keys: frozenset[str]
    by_worth: list[tuple[Mapping[str, float], list[RankedOffer]]] = field(default_factory=list)

    def ordered(self, worth: Mapping[str, float]) -> list[RankedOffer]:
        """Return the rows ordered by their worth."""
        if not self.by_worth or self.by_worth[0][0] is not worth:
            placed = sorted(self.places, key=lambda place: place.order(place.row, worth))
            self.by_worth[:] = [(worth, [place.row for place in placed])]
        return self.by_worth[0][1]


class _RankingKey:
    """The same wants of the very same market at the same moment."""

    def __init__(self, spec: JobSpec, market: Market, now_us: int) -> None:
        self.spec, self.market, self.now_us = spec, market, now_us
        self._asks = _asks(spec)

    def __hash__(self) -> int:
        return self.now_us

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _RankingKey) or self.market is not other.market:
            return False
        return (self.now_us, self._asks) == (other.now_us, other._asks)


@lru_cache(maxsize=32)  # kinds of jobs in one pass
def _board_of(asked: _RankingKey) -> _RankingTable:
    return _made(asked.spec, asked.market, asked.now_us)


def _board(spec: JobSpec, market: Market, now_us: int) -> _RankingTable:
    """Return the ranking table, computed once for all jobs with the same request and market."""
    return _board_of(_RankingKey(spec, market, now_us))


def _asks(spec: JobSpec) -> tuple[object, ...]:
    """Return the parts of a spec that decide where the job may run and its hourly cost there."""
    preferences = spec.preferences
    return (
        spec.resources.alternatives,
        spec.resources.ordered,
        spec.resources.capacity_ordered,
        spec.resources.num_nodes,
        spec.checkpoint,
        spec.limits.max_hourly_microusd,
        spec.timeouts.boot_timeout_s,
        spec.resources.fast_network,
        tuple((mount.url, mount.mode) for mount in spec.files.buckets),
        preferences.residency,
        preferences.not_operated_from,
        steered(spec),
    )


def _made(spec: JobSpec, market: Market, now_us: int) -> _RankingTable:
    """Return the table for this market; between two passes only refusals differ."""
    spoiled = spoiled_places(market.refusals, "")
    fits = _fits(_RequestKey(spec, market))
    places: list[_OfferFit] = []
    out: list[_OfferFit] = []
    for place in fits:
        offer = place.row.offer
        row, touched = place.row, touches(offer, spoiled)
        disabled = offer.provider in market.launch.disabled
        if offer.ends_at_us or disabled or (touched and row.excluded):
            row = _ranked(offer, spec, market, now_us, frozenset(), spoiled)
        elif touched:
            cooling = _cooling(offer, spec, now_us, spoiled)
            row = changed(row, **dict(zip(_WHY, cooling, strict=True))) if cooling[0] else row
        if row.excluded:
            out.append(_OfferFit(row, place.preference, place.risk))
        else:
            places.append(place)
    placed = (*places, *out)
    rows = SharedRanking(place.row for place in placed)
    return _RankingTable(placed, rows, frozenset(row.offer.key for row in rows))


class _RequestKey:
    """A job's request on a market, without refusals and time.

    Equal for jobs with the same request, as long as the offers are the same objects.
    """

    def __init__(self, spec: JobSpec, market: Market) -> None:
        self.spec = spec
        self.market = changed(market, refusals=(), disabled={}, history=UNKNOWN)
        stores, geography = market.stores, market.geography
        priced = (market.offers, stores.egress_microusd_per_gb, stores.storage_prices)
        self._same = (*priced, geography.countries, geography.operators)
        known = (tuple(stores.places.items()), stores.shards, tuple(stores.datasets.items()))
        self._key = (*_asks(spec), *known)

    def __hash__(self) -> int:
        return len(self.market.offers)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _RequestKey):
            return False
        same = all(one is two for one, two in zip(self._same, other._same, strict=True))
        return same and self._key == other._key


@lru_cache(maxsize=64)  # kinds of jobs; each holds its offers, so that an id is not another's
def _fits(asked: _RequestKey) -> tuple[_OfferFit, ...]:
    """Return the offers that fit, ignoring refusals, the best first."""
    spec, market = asked.spec, asked.market
    places: list[_OfferFit] = []
    for offer in market.offers:
        choice = next(
            (i for i, want in enumerate(spec.resources.alternatives) if want.admits(offer)), None
        )
        if choice is None:
            continue
        row = _ranked(offer, spec, market, 0, frozenset(), {})
        preference = (choice if spec.resources.ordered else 0, _capacity_rank(spec, offer, choice))
        risk = (-(offer.score or NEUTRAL), offer.evicted_pct or NEUTRAL_PCT)
        places.append(_OfferFit(row, preference, risk))
    return tuple(sorted(places, key=lambda place: place.order(place.row, NOTHING)[1:]))


def _own(market: Market, job_id: str) -> bool:
    """Return whether a refusal concerns this job alone."""
    ours = [refusal for refusal in market.refusals if refusal.code in OF_ONE_JOB]
    return any(refusal.node_id.startswith(f"{job_id}-g") for refusal in ours)


def _ranked(
    offer: Offer,
    spec: JobSpec,
    market: Market,
    now_us: int,
    barred: Set[str],
    spoiled: Spoiled,
) -> RankedOffer:
    egress = egress_microusd_per_h(offer, spec, market)
    carried = (egress or 0) + (requests_microusd_per_h(offer, spec, market) or 0)
    score = offer.price_microusd_per_h * spec.resources.num_nodes + carried
    excluded, until_us, code = _excluded(offer, spec, market, now_us, barred, spoiled)
    if not excluded and carried and _above_cap(spec, offer, carried):
        text = f"with {format_microusd(carried)}/h of egress and requests above max_hourly_cost"
        excluded, code = text, TOO_DEAR
    return RankedOffer(offer, score, excluded, until_us, code, egress)


def could_run(spec: JobSpec, offer: Offer, market: Market, now_us: int) -> bool:
    """Return whether the job would accept the offer if no request had been refused there."""
    if not any(want.admits(offer) for want in spec.resources.alternatives):
        return False
    carried = egress_microusd_per_h(offer, spec, market) or 0
    carried += requests_microusd_per_h(offer, spec, market) or 0
    out, _, _ = _excluded(offer, spec, market, now_us, set(), {})
    return not out and not (carried and _above_cap(spec, offer, carried))


def _above_cap(spec: JobSpec, offer: Offer, carried_microusd_per_h: int) -> bool:
    """The cap is a machine's; each of a gang uploads its own share."""
    each = offer.price_microusd_per_h + carried_microusd_per_h // spec.resources.num_nodes
    return 0 < spec.limits.max_hourly_microusd < each


def _capacity_rank(spec: JobSpec, offer: Offer, choice: int) -> int:
    """Return the position of its capacity type in the job's preference."""
    if not spec.resources.capacity_ordered:
        return 0
    return spec.resources.alternatives[choice].capacity_types.index(offer.capacity_type)


def lacks_network(spec: JobSpec, offer: Offer) -> bool:
    """Return whether a gang's ranks would use plain IP there without the user's consent.

    Local machines are processes of one box and need no network.
    """
    gang = spec.resources.fast_network and spec.resources.num_nodes > 1
    return gang and not offer.interconnect and not offer.local


def _excluded(
    offer: Offer, spec: JobSpec, market: Market, now_us: int, barred: Set[str], spoiled: Spoiled
) -> tuple[str, int, str]:
    unfit = _unfit(offer, spec, market)
    if unfit is not None:
        return unfit
    if offer.provider in market.launch.disabled:
        return (
            f"{offer.provider} cannot be used: {market.launch.disabled[offer.provider]}",
            0,
            DISABLED,
        )
    if offer.price_source == DOUBTED:
        return "its price is implausible", 0, DOUBTED
    cap_microusd = spec.limits.max_hourly_microusd
    if cap_microusd and offer.price_microusd_per_h > cap_microusd:
        return (
            f"{format_microusd(offer.price_microusd_per_h)}/h is above max_hourly_cost",
            0,
            TOO_DEAR,
        )
    if too_short(offer, spec.timeouts.boot_timeout_s, now_us):
        left_s = max(0.0, (offer.ends_at_us - now_us) / 1e6)
        return f"its booked time ends in {left_s / 60:.0f} min", 0, ENDS
    if offer.key in barred:
        return "being preempted, or already requested", 0, TAKEN
    return _cooling(offer, spec, now_us, spoiled)


def _cooling(offer: Offer, spec: JobSpec, now_us: int, spoiled: Spoiled) -> tuple[str, int, str]:
    cap_s = STEERED_CAP_S if steered(spec) else CAP_S
    until_us, code = cooldown_until_us(offer, spoiled, spec.timeouts.boot_timeout_s, cap_s)
    if until_us > now_us:
        wait_s = (until_us - now_us) / 1e6
        return f"cooling for {wait_s:.0f} s more after {code}", until_us, code
    return "", 0, ""


def _unfit(offer: Offer, spec: JobSpec, market: Market) -> tuple[str, int, str] | None:
    """Why the job can never run there."""
    elsewhere = out_of_place(spec, offer, market)
    if elsewhere:
        return elsewhere, 0, RESIDENCE
    if lacks_network(spec, offer):
        needs = f" without {offer.joins_with}" if offer.joins_with else ""
        return f"no interconnect between its machines{needs}; {_SLOWLY}", 0, SLOW
    refused = freight(spec, offer, market).refused
    return (refused, 0, FREIGHT) if refused else None
