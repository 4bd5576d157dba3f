"""The planned prefetches of a job's data sets as JSON: destination, cost, reason of refusal."""

from __future__ import annotations

from typing import Any

from spotd.domain.market import Market
from spotd.domain.view import View
from spotd.money.units import usd
from spotd.planner.rules.prefetch_datasets import (
    PlannedCopy,
    left_of,
    legs,
    next_offers,
    region_of,
    within,
)
from spotd.store.dataset_costs import paid_by_copy
from spotd.store.interface import Store


def prefetch_data(view: View, market: Market, now_us: int, store: Store) -> list[dict[str, Any]]:
    """Return the copies in the order in which they are made.

    `usd` is the expected total cost of a copy and `paid` the part that was spent for this job. Both
    include one month of storage.
    """
    if not view.job.spec.preferences.ahead.regions:
        return []
    paid = paid_by_copy(store.transfers.rows(view.job.id), market) if view.job.id else {}
    here = {region_of(node.offer) for node in view.nodes if node.active}
    offers = next_offers(view, market, now_us, here)
    copies = within(legs(view.job.spec, market, offers, paid), paid, left_of(view))
    return [_copy_data(planned, paid) for planned in copies]


def prefetch_warnings(view: View, market: Market, now_us: int, store: Store) -> list[str]:
    """Return warnings about refused prefetches of a job before its submission."""
    return [
        f"spotd.stage_ahead: data set {row['data_set']} is not copied ahead to {row['copy']}: "
        f"{row['refused']}"
        for row in prefetch_data(view, market, now_us, store)
        if row["refused"]
    ]


def _copy_data(leg: PlannedCopy, paid: dict[str, int]) -> dict[str, Any]:
    return {
        "data_set": leg.name,
        "copy": leg.copy,
        "gb": leg.size_bytes / 1e9 or None,
        "usd": usd(leg.microusd) if leg.microusd else None,
        "paid_usd": usd(paid.get(leg.copy, 0)),
        "staged": leg.staged,
        "refused": leg.refused,
    }
