"""For a waiting job: why offers are excluded, and the cheapest offer after relaxing its request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from providers.base import CapacityType, Offer
from providers.dollars import format_microusd
from spotd.domain.fast_replace import changed
from spotd.domain.job import JobSpec
from spotd.domain.market import Market
from spotd.planner.offers.cooldowns import NOT_LENT, OWN_IMAGE
from spotd.planner.offers.price_sanity import DOUBTED
from spotd.planner.placement.rank import (
    DISABLED,
    ENDS,
    FLAT,
    FREIGHT,
    RESIDENCE,
    SLOW,
    TAKEN,
    TOO_DEAR,
    TURN,
    RankedOffer,
    lacks_network,
    rank,
)

_WORDS = {
    "CapacityError": "without capacity",
    "QuotaError": "over quota",
    "NoQuotaError": "without a quota",
    "UnpreparedError": "in regions that are not prepared",
    "PriceError": "above the cap that the cloud was sent",
    "RejectedError": "of a cloud that rejects the request",
    "AuthError": "of a cloud that refuses the credentials",
    "Preempted": "preempted recently",
    "Lost": "lost recently",
    "BootTimeout": "whose machines did not boot",
    OWN_IMAGE: "without the image",
    NOT_LENT: "without credentials for its store",
    TOO_DEAR: "above max_hourly_cost",
    DISABLED: "of a cloud that cannot be used",
    DOUBTED: "at an implausible price",
    ENDS: "with booked time that is about to end",
    RESIDENCE: "where the job may not run",
    SLOW: "without an interconnect",
    FLAT: "as expensive as on demand",
    FREIGHT: "too far from its data",
    TURN: "reserved for jobs ahead of it",
    TAKEN: "already requested, or being preempted",
}
ANY = (CapacityType.SPOT, CapacityType.ON_DEMAND)


def by_reason(ranked: Iterable[RankedOffer]) -> str:
    """Return the number of offers by reason, the most frequent first: "7 without capacity, 2 over
    quota".

    "" if all have the same reason.
    """
    counts = Counter(row.code for row in ranked if row.excluded)
    if len(counts) < 2:
        return ""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} {_WORDS.get(code, code)}" for code, count in ordered)


def way_out(spec: JobSpec, market: Market, now_us: int, job_id: str) -> str:
    """Return the changes of the job file that would give it the cheapest available machine, or "".

    It relaxes the price cap, the capacity type, and for a gang the interconnect.
    """
    wider = changed(
        spec,
        alternatives=tuple(
            replace(want, capacity_types=ANY) for want in spec.resources.alternatives
        ),
        max_hourly_microusd=0,
        fast_network=False,
    )
    ranked = rank(wider, market, now_us, job_id=job_id)
    free = [row.offer for row in ranked if not row.excluded]
    if not free:
        return ""
    best = min(free, key=lambda offer: (offer.price_microusd_per_h, offer.key))
    changes = _changes(spec, best)
    return (
        f"{changes} for {best.key} at {format_microusd(best.price_microusd_per_h)}/h"
        if changes
        else ""
    )


def _changes(spec: JobSpec, offer: Offer) -> str:
    changes = []
    if not any(offer.capacity_type in want.capacity_types for want in spec.resources.alternatives):
        what = "spot" if offer.capacity_type is CapacityType.SPOT else "on-demand"
        key = "spotd.capacity" if spec.resources.capacity_ordered else "drop use_spot"
        changes.append(f"allow {what} ({key})")
    if 0 < spec.limits.max_hourly_microusd < offer.price_microusd_per_h:
        changes.append("raise max_hourly_cost")
    if lacks_network(spec, offer):
        changes.append("do without an interconnect (spotd.slow_network)")
    return " and ".join(changes)
