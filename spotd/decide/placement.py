"""Which offer to ask for: filter by what the job needs, rank by expected price."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from providers.base import Offer
from spotd.decide.booked import too_short
from spotd.decide.carriage import egress_microusd_per_h
from spotd.decide.cooldowns import (
    CAP_S,
    STEERED_CAP_S,
    Spoiled,
    cooldown_until_us,
    spoiled_places,
)
from spotd.decide.gangs import shrinks
from spotd.decide.preemptions import shunned
from spotd.decide.prices import DOUBTED
from spotd.decide.residence import out_of_place
from spotd.model import JobSpec, Market
from spotd.wishes import Objective

# Why an offer is not to be had, beside the codes of cooldowns.
DISABLED = "Disabled"
TOO_DEAR = "TooDear"
TAKEN = "Taken"
SLOW = "SlowNetwork"
RESIDENCE = "Residence"
_SLOWLY = "spotd.slow_network: true takes it"
ENDS = "EndsSoon"
NEUTRAL_PCT = 10  # of machines that were taken back, where that is not told
NEUTRAL = 5  # the score, of 1 to 10, that an offer without one counts as
NOTHING: Mapping[str, float] = {}
# Excluded, of a taker, refused before, preference, worth and price, risk, key.
_Order = tuple[bool, bool, bool, tuple[int, int], tuple[float, int], tuple[int, int], str]


@dataclass(frozen=True)
class Ranked:
    """One offer that fits, with its score (lower is better) or why it is not to be had now.

    `until_us` is when the reason may pass; 0 when it will not pass by itself. `code` is the reason
    in one word. `egress_microusd_per_h` is what its saves cost there, part of the score; None where
    that is not known.
    """

    offer: Offer
    score_microusd_per_h: int
    excluded: str = ""
    until_us: int = 0
    code: str = ""
    egress_microusd_per_h: int | None = None


def steered(spec: JobSpec) -> bool:
    """Whether the policy says by itself when to ask, where, and when to move: it is told how much
    there is to do. (Else it ranks what is to be had: an order that a file names comes before any
    reckoning, and a gang that shrinks and grows has no one pace.)"""
    named = spec.ordered or spec.capacity_ordered or shrinks(spec)
    return spec.wishes.measurable and not named and spec.wishes.objective is Objective.COST


def rank(
    spec: JobSpec,
    market: Market,
    now_us: int,
    taken: Iterable[str] = (),
    takers: frozenset[str] = frozenset(),
    job_id: str = "",
    asked: frozenset[str] = frozenset(),
    worth: Mapping[str, float] = NOTHING,
) -> list[Ranked]:
    """Every offer that fits, the best first, those not to be had now last.

    `taken` are offer keys not to be asked for: of a machine being taken away, or one that we are
    already asking for. `takers` are providers that took too many away: what they may take again
    comes after all others. `asked` are offer keys that refused the attempt that asks: whatever has
    not comes before them, for a job without a machine loses more by waiting than by a price.
    `job_id` is the job's, once it has one. With `spec.ordered` an earlier alternative beats a
    cheaper one, and so does an earlier capacity type with `spec.capacity_ordered`. `worth` is by an
    offer's key what counts before its price (decide/worth.py), of all or of none. Of equal prices
    the vendor's higher placement score comes first, and of equal scores the lower share of machines
    that it took back.
    """
    barred, spoiled = set(taken), spoiled_places(market.refusals, job_id)
    rows: list[tuple[_Order, Ranked]] = []
    for offer in market.offers:
        choices = [i for i, want in enumerate(spec.alternatives) if want.admits(offer)]
        if not choices:
            continue
        carried = egress_microusd_per_h(offer, spec, market)
        score = offer.price_microusd_per_h * spec.num_nodes + (carried or 0)
        excluded, until_us, code = _excluded(offer, spec, market, now_us, barred, spoiled)
        if not excluded and carried and _above_cap(spec, offer, carried):
            excluded, code = (
                f"with ${carried / 1e6:.2f}/h of egress above max_hourly_cost",
                TOO_DEAR,
            )
        preference = (choices[0] if spec.ordered else 0, _capacity_rank(spec, offer, choices[0]))
        ranked = Ranked(offer, score, excluded, until_us, code, carried)
        last = shunned(offer, takers)
        again = offer.key in asked
        risk = (-(offer.score or NEUTRAL), offer.evicted_pct or NEUTRAL_PCT)
        value = (worth.get(offer.key, 0.0), score)
        order = (bool(excluded), last, again, preference, value, risk, offer.key)
        rows.append((order, ranked))
    rows.sort(key=lambda row: row[0])
    return [row[1] for row in rows]


def _above_cap(spec: JobSpec, offer: Offer, carried_microusd_per_h: int) -> bool:
    """The cap is a machine's; each of a gang uploads its own share."""
    each = offer.price_microusd_per_h + carried_microusd_per_h // spec.num_nodes
    return 0 < spec.max_hourly_microusd < each


def _capacity_rank(spec: JobSpec, offer: Offer, choice: int) -> int:
    """Which of the capacity types that were asked for it is, in order of preference."""
    if not spec.capacity_ordered:
        return 0
    return spec.alternatives[choice].capacity_types.index(offer.capacity_type)


def lacks_network(spec: JobSpec, offer: Offer) -> bool:
    """Whether a gang's ranks would talk over plain IP there, and its user has not said that this is
    good enough. Local machines are processes of one box: there is no network between them."""
    gang = spec.fast_network and spec.num_nodes > 1
    return gang and not offer.interconnect and not offer.local


def _excluded(
    offer: Offer, spec: JobSpec, market: Market, now_us: int, barred: set[str], spoiled: Spoiled
) -> tuple[str, int, str]:
    unfit = _unfit(offer, spec, market)
    if unfit is not None:
        return unfit
    if offer.provider in market.disabled:
        return f"{offer.provider} is out of use: {market.disabled[offer.provider]}", 0, DISABLED
    if offer.price_source == DOUBTED:
        return "its price is not to be believed", 0, DOUBTED
    if spec.max_hourly_microusd and offer.price_microusd_per_h > spec.max_hourly_microusd:
        return f"${offer.price_microusd_per_h / 1e6:.2f}/h is above max_hourly_cost", 0, TOO_DEAR
    if too_short(offer, spec.boot_timeout_s, now_us):
        left_s = max(0.0, (offer.ends_at_us - now_us) / 1e6)
        return f"its booked time ends in {left_s / 60:.0f} min", 0, ENDS
    if offer.key in barred:
        return "being taken away, or already asked for", 0, TAKEN
    cap_s = STEERED_CAP_S if steered(spec) else CAP_S
    until_us, code = cooldown_until_us(offer, spoiled, spec.boot_timeout_s, cap_s)
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
    return None
