"""What of a job's data sets is brought ahead of it, for people: where to, for how much, or why
not."""

from __future__ import annotations

from typing import Any

from spotd.api.views.resources import usd
from spotd.domain.market import Market
from spotd.domain.view import View
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


def ahead_data(view: View, market: Market, now_us: int, store: Store) -> list[dict[str, Any]]:
    """In the order in which copies are made. `usd` is what each is expected to cost in all, `paid`
    what of that was spent for this job; both have a month of lying there in them."""
    if not view.job.spec.wishes.ahead.regions:
        return []
    paid = paid_by_copy(store.shipments(view.job.id), market) if view.job.id else {}
    here = {region_of(node.offer) for node in view.nodes if node.active}
    offers = next_offers(view, market, now_us, here)
    found = within(legs(view.job.spec, market, offers, paid), paid, left_of(view))
    return [_leg(one, paid) for one in found]


def ahead_warnings(view: View, market: Market, now_us: int, store: Store) -> list[str]:
    """Of a job that is to be submitted."""
    return [
        f"spotd.stage_ahead: data set {row['data_set']} is not brought ahead to {row['copy']}: "
        f"{row['refused']}"
        for row in ahead_data(view, market, now_us, store)
        if row["refused"]
    ]


def _leg(leg: PlannedCopy, paid: dict[str, int]) -> dict[str, Any]:
    return {
        "data_set": leg.name,
        "copy": leg.copy,
        "gb": leg.size_bytes / 1e9 or None,
        "usd": usd(leg.microusd) if leg.microusd else None,
        "paid_usd": usd(paid.get(leg.copy, 0)),
        "staged": leg.staged,
        "refused": leg.refused,
    }
