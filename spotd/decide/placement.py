"""Which offer to ask for: filter by what the job needs, rank by expected price."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from providers.base import Offer
from spotd.decide.cooldowns import Spoiled, cooldown_until_us, spoiled_places
from spotd.decide.preemptions import shunned
from spotd.decide.prices import DOUBTED
from spotd.model import JobSpec, Market

# Why an offer is not to be had, beside the codes of cooldowns.
DISABLED = "Disabled"
TOO_DEAR = "TooDear"
TAKEN = "Taken"


@dataclass(frozen=True)
class Ranked:
    """One offer that fits, with its score (lower is better) or why it is not to be had now.

    `until_us` is when the reason may pass; 0 when it will not pass by itself. `code` is the reason
    in one word.
    """

    offer: Offer
    score_microusd_per_h: int
    excluded: str = ""
    until_us: int = 0
    code: str = ""


def rank(
    spec: JobSpec,
    market: Market,
    now_us: int,
    taken: Iterable[str] = (),
    takers: frozenset[str] = frozenset(),
    job_id: str = "",
    asked: frozenset[str] = frozenset(),
) -> list[Ranked]:
    """Every offer that fits, the best first, those not to be had now last.

    `taken` are offer keys not to be asked for: of a machine being taken away, or one that we are
    already asking for. `takers` are providers that took too many away: what they may take again
    comes after all others. `asked` are offer keys that refused the attempt that asks: whatever has
    not comes before them, for a job without a machine loses more by waiting than by a price.
    `job_id` is the job's, once it has one. With `spec.ordered` an earlier alternative beats a
    cheaper one.
    """
    barred, spoiled = set(taken), spoiled_places(market.refusals, job_id)
    rows: list[tuple[bool, bool, bool, int, int, str, Ranked]] = []
    for offer in market.offers:
        choices = [i for i, want in enumerate(spec.alternatives) if want.admits(offer)]
        if not choices:
            continue
        score = offer.price_microusd_per_h * spec.num_nodes
        excluded, until_us, code = _excluded(offer, spec, market, now_us, barred, spoiled)
        preference = choices[0] if spec.ordered else 0
        ranked = Ranked(offer, score, excluded, until_us, code)
        last = shunned(offer, takers)
        again = offer.key in asked
        rows.append((bool(excluded), last, again, preference, score, offer.key, ranked))
    rows.sort(key=lambda row: row[:6])
    return [row[6] for row in rows]


def _excluded(
    offer: Offer, spec: JobSpec, market: Market, now_us: int, barred: set[str], spoiled: Spoiled
) -> tuple[str, int, str]:
    if offer.provider in market.disabled:
        return f"{offer.provider} is out of use: {market.disabled[offer.provider]}", 0, DISABLED
    if offer.price_source == DOUBTED:
        return "its price is not to be believed", 0, DOUBTED
    if spec.max_hourly_microusd and offer.price_microusd_per_h > spec.max_hourly_microusd:
        return f"${offer.price_microusd_per_h / 1e6:.2f}/h is above max_hourly_cost", 0, TOO_DEAR
    if offer.key in barred:
        return "being taken away, or already asked for", 0, TAKEN
    until_us, code = cooldown_until_us(offer, spoiled, spec.boot_timeout_s)
    if until_us > now_us:
        wait_s = (until_us - now_us) / 1e6
        return f"cooling for {wait_s:.0f} s more after {code}", until_us, code
    return "", 0, ""
