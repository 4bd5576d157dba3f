"""Spot that costs as much as a machine on demand in its own place has no discount, and can be taken
away: whoever may have both is not sent there while the other is to be had."""

from __future__ import annotations

from providers.base import CapacityType
from spotd.changed import changed
from spotd.decide.placement import FLAT, Ranked, Shared, steered
from spotd.decide.prices import NO_DISCOUNT
from spotd.decide.seen import pool_of
from spotd.model import JobSpec


def without_flat(spec: JobSpec, rows: list[Ranked]) -> list[Ranked]:
    """`rows` as `rank` gave them; spot at NO_DISCOUNT of on-demand or more is out where
    on-demand of the same type in the same zone is among them and free. Where a deadline steers, the
    policy weighs both by itself."""
    if spec.deadline_us and steered(spec):
        return rows
    if not isinstance(rows, Shared):
        return _marked(rows)
    if "flat" not in rows.kept:
        rows.kept["flat"] = _marked(rows)
    return rows.kept["flat"]  # type: ignore[return-value]


def _marked(rows: list[Ranked]) -> list[Ranked]:
    full = {
        pool_of(row.offer): row.offer.price_microusd_per_h
        for row in rows
        if row.offer.capacity_type is CapacityType.ON_DEMAND and not row.excluded
    }
    out: list[Ranked] = []
    for row in rows:
        if row.offer.capacity_type is CapacityType.SPOT and not row.excluded:
            beside = full.get(pool_of(row.offer))
            if beside and row.offer.price_microusd_per_h >= NO_DISCOUNT * beside:
                of = row.offer.price_microusd_per_h / beside
                why = f"no discount: {of:.0%} of what it costs on demand, which is to be had"
                out.append(changed(row, excluded=why, code=FLAT))
    if not out:
        return rows
    keys = {row.offer.key for row in out}
    free = [row for row in rows if not row.excluded and row.offer.key not in keys]
    rest = [row for row in rows if row.excluded]
    return Shared((*free, *out, *rest)) if isinstance(rows, Shared) else [*free, *out, *rest]
