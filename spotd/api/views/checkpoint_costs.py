"""Costs of a job's checkpoints in their store, besides egress: storage and write requests.

By dated list prices. Costs of soft delete and versions are not included.
"""

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
    """Return the cost of the checkpoints that the job keeps at any time.

    None where the price or the size is not known.
    """
    saves = spec.checkpoint
    price = storage_prices().get(store_of(spec, market).cloud)
    if price is None or not saves.size_bytes or saves.engine == "none":
        return None
    month_microusd = price.microusd_per_month(saves.size_bytes * saves.keep)
    return {
        "store": saves.store,
        "keep": saves.keep,
        "usd_per_month": usd(month_microusd),
        "usd_per_h": usd(round(month_microusd / HOURS_A_MONTH)),
        "class": price.storage_class,
        "region": price.region,
        "dated": price.dated,
    }


def requests_usd_per_h(offer: Offer, spec: JobSpec, market: Market) -> float | None:
    """Return the dollars per hour of the write requests of the job's saves.

    A save is written in parts of PART_BYTES, one request each. None where the price, the size of a
    save or the interval is not known.
    """
    microusd = requests_microusd_per_h(offer, spec, market)
    return None if microusd is None else usd(microusd)
