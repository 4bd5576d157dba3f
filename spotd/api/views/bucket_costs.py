"""What a bucket costs beside what lies in it: for the doctor, and for whoever submits a job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from providers.base import Offer
from providers.catalogs.egress import egress_prices
from providers.catalogs.storage import storage_of
from providers.stores.settings import BucketSettings
from spotd.api.request.request import ApiContext, Check
from spotd.domain.job import CheckpointSpec
from spotd.store.interface import StoreError

MONTH_S = 30 * 86_400.0
PARTS_DAYS = 7  # no upload of one object takes as long
GB = 1e9  # in which what leaves a cloud is counted


@dataclass(frozen=True)
class SavePattern:
    """A job saves so many bytes so often, and keeps so many of them."""

    job: str
    size: int
    every_s: float
    keep: int


def check_bucket(url: str, found: BucketSettings | str, savings: Iterable[SavePattern]) -> Check:
    """`found` is why its settings cannot be seen, where it is a text. Never a failure: it works."""
    name = "bucket settings"
    if isinstance(found, str):
        text = f"{url}: whether deletes are kept there, and paid for, cannot be seen: {found}"
        return Check(name, True, text, "see docs/stores.md for the right that it takes", True)
    doubts, advices = [], []
    jobs = list(savings)
    if found.kept_s:
        days = found.kept_s / 86_400
        doubts.append(f"keeps what is deleted for {days:.3g} days{_cost(url, found.kept_s, jobs)}")
    if found.versioned:
        doubts.append("keeps every version of what is written anew or deleted, for ever")
    if doubts:
        advices.append(
            "switch soft delete and versioning off there, or have a bucket for checkpoints alone"
        )
    if found.ends_parts is False:
        doubts.append("keeps, and charges for, parts of large objects that a killed machine began")
        advices.append(
            f"give it a lifecycle rule AbortIncompleteMultipartUpload, of {PARTS_DAYS} days"
        )
    if doubts:
        return Check(name, True, f"{url} {'; and '.join(doubts)}", "; and ".join(advices), True)
    where = f" in {found.region}" if found.region else ""
    size = sum(saving.size * saving.keep for saving in jobs)
    usd = _usd(url, size)
    rest = f"; what its jobs keep is {size / GB:,.3g} GB" if size else ""
    rest += f", about ${usd:,.2f} a month" if size and usd is not None else ""
    return Check(name, True, f"{url}{where} keeps nothing that is deleted{rest}")


def _cost(url: str, kept_s: float, jobs: list[SavePattern]) -> str:
    """What lies there at any time of what was deleted."""
    size = int(sum(saving.size * kept_s / saving.every_s for saving in jobs))
    if not size:
        return ": each checkpoint that retention takes away is paid for until then"
    usd = _usd(url, size)
    price = f", about ${usd:,.2f} a month" if usd is not None else ""
    many = f"of {len(jobs)} jobs" if len(jobs) > 1 else f"of job {jobs[0].job}"
    return f": {size / GB:,.3g} GB {many} that nobody can use{price}"


def _usd(url: str, size: int) -> float | None:
    """By the month; None where no price is known."""
    price = storage_of(url)
    return price.microusd_per_month(size) / 1e6 if price is not None else None


def leaving(kept: CheckpointSpec, offers: Iterable[Offer], store_cloud: str) -> list[str]:
    """What it costs that the job's machines may save into another cloud's bucket: by offers that
    fit, dated list prices, and for each GB that is saved."""
    if not store_cloud:
        return []
    saves = MONTH_S / kept.every_s
    lines = []
    for cloud in sorted({one.cloud for one in offers if not one.local} - {store_cloud, ""}):
        price = egress_prices().get(cloud)
        if price is None:
            continue
        usd = price.microusd(saves) / 1e6
        lines.append(
            f"machines of {cloud} would save into {kept.store} of {store_cloud}: with every "
            f"{kept.every_s / 60:.3g} min, about ${usd:,.0f} a month for each GB of a checkpoint "
            f"(list price of {price.dated}); name a store of {cloud}, or resources.cloud"
        )
    return lines


def check_buckets(backing: ApiContext) -> list[Check]:
    """A line for each bucket of checkpoints."""
    looks = backing.bucket_settings()
    if not looks:
        return []
    savings: dict[str, list[SavePattern]] = {}
    try:
        for job in backing.store.jobs(False):
            rows = backing.store.checkpoints(job.id)
            size = max((row.bytes for row in rows), default=0)
            kept = job.spec.checkpoint
            saving = SavePattern(job.name, size, kept.every_s, kept.keep)
            savings.setdefault(kept.store, []).extend([saving] if size else [])
    except StoreError:
        savings = {}  # told with the database
    return [check_bucket(url, found, _under(url, savings)) for url, found in looks.items()]


def _under(url: str, savings: dict[str, list[SavePattern]]) -> list[SavePattern]:
    """Of the jobs whose stores are the bucket that `url` is in."""
    bucket = url.split("/", 3)[:3]
    return [
        one for store, ones in savings.items() if store.split("/", 3)[:3] == bucket for one in ones
    ]
