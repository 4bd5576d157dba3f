"""Skip spot offers that cost as much as on-demand in the same zone, if the job accepts both.

Such an offer has no discount and can still be preempted.
"""

from __future__ import annotations

from providers.base import CapacityType
from spotd.domain.fast_replace import changed
from spotd.domain.job import JobSpec
from spotd.planner.offers.price_sanity import NO_DISCOUNT
from spotd.planner.placement.rank import FLAT, RankedOffer, SharedRanking, steered
from spotd.planner.spot_policy.pool_history import pool_of


def without_flat(spec: JobSpec, rows: list[RankedOffer]) -> list[RankedOffer]:
    """Return `rows` without spot at NO_DISCOUNT of the on-demand price or more.

    Only where on-demand of the same type in the same zone is among them and available. With a
    deadline the policy weighs both by itself.
    """
    if spec.limits.deadline_us and steered(spec):
        return rows
    if not isinstance(rows, SharedRanking):
        return _marked(rows)
    if "flat" not in rows.cache:
        rows.cache["flat"] = _marked(rows)
    return rows.cache["flat"]  # type: ignore[return-value]


def _marked(rows: list[RankedOffer]) -> list[RankedOffer]:
    full = {
        pool_of(row.offer): row.offer.price_microusd_per_h
        for row in rows
        if row.offer.capacity_type is CapacityType.ON_DEMAND and not row.excluded
    }
    out: list[RankedOffer] = []
    for row in rows:
        if row.offer.capacity_type is CapacityType.SPOT and not row.excluded:
            beside = full.get(pool_of(row.offer))
            if beside and row.offer.price_microusd_per_h >= NO_DISCOUNT * beside:
                of = row.offer.price_microusd_per_h / beside
                why = f"no discount: {of:.0%} of the on-demand price, and on-demand is available"
                out.append(changed(row, excluded=why, code=FLAT))
    if not out:
        return rows
    keys = {row.offer.key for row in out}
    free = [row for row in rows if not row.excluded and row.offer.key not in keys]
    rest = [row for row in rows if row.excluded]
    return (
        SharedRanking((*free, *out, *rest))
        if isinstance(rows, SharedRanking)
        else [*free, *out, *rest]
    )
