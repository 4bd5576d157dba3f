"""What a job's checkpoints cost in their store, beside the bytes that leave a cloud: to lie there,
and to be written. By dated list prices; what soft delete or versions keep is not in it."""

from __future__ import annotations

from typing import Any

from providers.base import Offer
from providers.catalogs.storage import storage_prices
from spotd.api.views.resources import usd
from spotd.domain.job import JobSpec
from spotd.domain.market import Market
from spotd.planner.core.shard_stores import requests_microusd_per_h, store_of

HOURS_A_MONTH = 730.0


def storage_data(spec: JobSpec, market: Market) -> dict[str, Any] | None:
    """Of what the job keeps there at any time; None where nobody's price or no size is known."""
    saves = spec.checkpoint
    price = storage_prices().get(store_of(spec, market).cloud)
    if price is None or not saves.size_bytes or saves.engine == "none":
        return None
    month = price.microusd_per_month(saves.size_bytes * saves.keep)
    return {
        "store": saves.store,
        "keep": saves.keep,
        "usd_per_month": usd(month),
        "usd_per_h": usd(round(month / HOURS_A_MONTH)),
        "class": price.storage_class,
        "region": price.region,
        "dated": price.dated,
    }


def requests_usd_per_h(offer: Offer, spec: JobSpec, market: Market) -> float | None:
    """Of the writes of its saves there, a part of PART_BYTES each; None where the price, a save's
    size or how often there is one is not known."""
    found = requests_microusd_per_h(offer, spec, market)
    return None if found is None else usd(found)
