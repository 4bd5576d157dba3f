"""Costs of buckets: of checkpoints by dated list prices, and hidden ones.

Hidden are retained deleted objects, versions, upload parts and egress: the doctor checks them, and
a job's submission warns of them. They are not in the costs of checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from providers.base import Offer
from providers.catalogs.egress import egress_prices
from providers.catalogs.storage import storage_price_of, storage_prices
from providers.dollars import format_usd
from providers.stores.settings import BucketSettings
from spotd.api.request.context import ApiContext
from spotd.api.request.request import Check
from spotd.domain.job import CheckpointSpec, JobSpec
from spotd.domain.market import Market
from spotd.domain.units import MONTH_H
from spotd.money.units import usd
from spotd.planner.core.shard_stores import requests_microusd_per_h, store_of
from spotd.store.errors import StoreError

MONTH_S = 30 * 86_400.0
PARTS_DAYS = 7  # no upload of one object takes that long
GB = 1e9  # the unit in which clouds count egress


@dataclass(frozen=True)
class SavePattern:
    """How a job saves: `size` bytes every `every_s` seconds, keeping the last `keep` saves."""

    job: str
    size: int
    every_s: float
    keep: int


def check_bucket(
    url: str, settings: BucketSettings | str, patterns: Iterable[SavePattern]
) -> Check:
    """Check the settings of one bucket; a doubt at most, because saving works.

    `settings` is a text, the reason, where the settings cannot be read.
    """
    name = "bucket settings"
    if isinstance(settings, str):
        message = f"{url}: spotd cannot see whether deleted objects are retained: {settings}"
        return Check(name, True, message, "see docs/stores.md for the right that this needs", True)
    doubts, fixes = [], []
    jobs = list(patterns)
    if settings.soft_delete_s:
        days = settings.soft_delete_s / 86_400
        doubts.append(
            f"retains deleted objects for {days:.3g} days{_cost(url, settings.soft_delete_s, jobs)}"
        )
    if settings.versioned:
        doubts.append("retains every overwritten or deleted version forever")
    if doubts:
        fixes.append(
            "turn off soft delete and versioning there, or use a separate bucket for checkpoints"
        )
    if settings.aborts_uploads is False:
        doubts.append("keeps, and charges for, parts of large objects that a killed machine began")
        fixes.append(
            f"give it a lifecycle rule AbortIncompleteMultipartUpload, of {PARTS_DAYS} days"
        )
    if doubts:
        return Check(name, True, f"{url} {'; and '.join(doubts)}", "; and ".join(fixes), True)
    place = f" in {settings.region}" if settings.region else ""
    size = sum(pattern.size * pattern.keep for pattern in jobs)
    usd = _usd(url, size)
    stored = f"; what its jobs keep is {size / GB:,.3g} GB" if size else ""
    stored += f", about {format_usd(usd)} a month" if size and usd is not None else ""
    return Check(name, True, f"{url}{place} retains no deleted objects{stored}")


def _cost(url: str, soft_delete_s: float, jobs: list[SavePattern]) -> str:
    """Return the size and price of deleted objects that the bucket keeps at any time, as text."""
    size = int(sum(pattern.size * soft_delete_s / pattern.every_s for pattern in jobs))
    if not size:
        return ": each checkpoint that retention deletes is paid for until then"
    usd = _usd(url, size)
    price = f", about {format_usd(usd)} a month" if usd is not None else ""
    owners = f"of {len(jobs)} jobs" if len(jobs) > 1 else f"of job {jobs[0].job}"
    return f": {size / GB:,.3g} GB {owners} that cannot be used{price}"


def _usd(url: str, size: int) -> float | None:
    """Return the price of a month in dollars; None where no price is known."""
    price = storage_price_of(url)
    return price.microusd_per_month(size) / 1e6 if price is not None else None


def egress_warnings(saved: CheckpointSpec, offers: Iterable[Offer], store_cloud: str) -> list[str]:
    """Warn of the egress costs when the job's machines may save into another cloud's bucket.

    By the offers that fit and dated list prices, for each GB of a checkpoint.
    """
    if not store_cloud:
        return []
    saves = MONTH_S / saved.every_s
    warnings = []
    for cloud in sorted({offer.cloud for offer in offers if not offer.local} - {store_cloud, ""}):
        price = egress_prices().get(cloud)
        if price is None:
            continue
        usd = price.microusd(saves) / 1e6
        warnings.append(
            f"machines of {cloud} would save into {saved.store} of {store_cloud}: with every "
            f"{saved.every_s / 60:.3g} min, about {format_usd(usd)} a month for each GB of a "
            "checkpoint "
            f"(list price of {price.dated}); name a store of {cloud}, or resources.cloud"
        )
    return warnings


def check_buckets(context: ApiContext) -> list[Check]:
    """Return one check for each bucket of checkpoints."""
    settings_by_url = context.storage.bucket_settings()
    if not settings_by_url:
        return []
    patterns_by_store: dict[str, list[SavePattern]] = {}
    try:
        for job in context.store.jobs.rows(False):
            rows = context.store.checkpoints.rows(job.id)
            size = max((row.bytes for row in rows), default=0)
            checkpoint = job.spec.checkpoint
            pattern = SavePattern(job.name, size, checkpoint.every_s, checkpoint.keep)
            patterns_by_store.setdefault(checkpoint.store, []).extend([pattern] if size else [])
    except StoreError:
        patterns_by_store = {}  # the database check reports it
    return [
        check_bucket(url, settings, _patterns_of(url, patterns_by_store))
        for url, settings in settings_by_url.items()
    ]


def _patterns_of(url: str, patterns_by_store: dict[str, list[SavePattern]]) -> list[SavePattern]:
    """Return the save patterns of the jobs whose stores are in the bucket of `url`."""
    bucket = url.split("/", 3)[:3]
    return [
        pattern
        for store, patterns in patterns_by_store.items()
        if store.split("/", 3)[:3] == bucket
        for pattern in patterns
    ]


def storage_data(spec: JobSpec, market: Market) -> dict[str, Any] | None:
    """Return the cost of storing the checkpoints that the job keeps at any time.

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
        "usd_per_h": usd(round(month_microusd / MONTH_H)),
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
