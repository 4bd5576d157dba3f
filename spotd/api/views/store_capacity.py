"""Admission check of storage: room for checkpoints, and warnings of the cost of reading buckets."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from providers.base import Offer
from providers.catalogs.egress import egress_prices
from providers.dollars import format_usd
from spotd.api.request.context import ApiContext
from spotd.api.request.request import bad_input
from spotd.domain.job import JobSpec
from spotd.domain.market import Market
from spotd.planner.core.shard_stores import HERE, place_among
from spotd.sizing.checkpoint_size import bytes_a_parameter, checkpoint_bytes
from spotd.sizing.task import task_of
from spotd.spec.model import read_model_block
from spotd.wire import MountMode

GB = 1e9
# Snapshots on the local disk: the newest two of each rank, and the one that is being written
# (trainer/saver/disk.py). The system and the job's own files are not counted.
ON_DISK = 3
# Checkpoints in a store beyond the retained ones: the one that is being written, and the one before
# it, which is verified meanwhile. In directory mode that ends before the next one is written.
_SPARE, _SPARE_COPIED = 2, 1
_NAMED = {1: "one", 2: "two"}
_ACCESS = {
    MountMode.COPY: ("copy", "once a machine"),
    MountMode.MOUNT: ("read", "each time"),
    MountMode.MOUNT_CACHED: ("read", "once a machine"),
}


def size_of(context: ApiContext, spec: JobSpec, text: str) -> tuple[int, str]:
    """Return the size of a checkpoint in bytes and its source; 0 where it is not known.

    The sources, in order: the job file, the last save of a job of that name, and the parameters of
    `spotd.model` where all are trained.
    """
    saves = spec.checkpoint
    if saves.engine == "none" and not saves.directory:
        return 0, ""
    if saves.size_bytes:
        return saves.size_bytes, "checkpoint.size"
    before = context.store.jobs.find(spec.name)
    rows = context.store.checkpoints.rows(before.id) if before else []
    measured = [row.bytes for row in rows if row.bytes]
    if measured:
        return measured[-1], f"the last one of {spec.name}"
    model_fields = read_model_block(text)
    if not model_fields or saves.engine == "none":
        return 0, ""
    task = task_of(model_fields)
    if task.run.frozen:  # the program decides whether the base is saved beside its adapters
        return 0, ""
    return checkpoint_bytes(task), f"{bytes_a_parameter(task):g} bytes a parameter of spotd.model"


def check_capacity(context: ApiContext, spec: JobSpec, text: str) -> None:
    """Raise ApiError (bad input) where a folder of this box, or the disk requested, is too small.

    Buckets have no limit.
    """
    size, source = size_of(context, spec, text)
    if not size:
        return
    saves = spec.checkpoint
    if saves.store.startswith("file:"):
        folder = _existing_parent(Path(unquote(urlsplit(saves.store).path)))
        spare = _SPARE_COPIED if saves.engine == "none" else _SPARE
        free, need = shutil.disk_usage(folder).free, size * (saves.keep + spare)
        if need > free:
            fitting_keep = max(0, free // size - spare)
            raise bad_input(
                f"checkpoint.store {saves.store} has room for {free / GB:,.4g} GB, and the job "
                f"needs {need / GB:,.4g}: keep {saves.keep} and the next {_NAMED[spare]}, of "
                f"{size / GB:,.4g} GB each ({source})",
                f"keep: {fitting_keep}, or a bucket"
                if fitting_keep
                else "free some, or name a bucket there",
            )
    num_nodes, disk_gib = spec.resources.num_nodes, spec.resources.disk_gib
    need = ON_DISK * size // num_nodes
    if saves.engine != "none" and disk_gib and need > disk_gib << 30:
        raise bad_input(
            f"disk_size is {disk_gib} GiB, and each machine keeps {ON_DISK} snapshots of "
            f"{size / num_nodes / GB:,.4g} GB ({source}) on its disk while it saves: "
            f"{need / GB:,.4g} GB",
            f"disk_size: {-(-need >> 30) + 50} or more (50 for everything else); or leave it out",
        )


def _existing_parent(folder: Path) -> Path:
    """Return the folder, or its closest parent that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def mount_warnings(spec: JobSpec, market: Market, offers: Iterable[Offer]) -> list[str]:
    """Return warnings about mounts that are paid for with each read or copy.

    `offers` are those in places where the job may run.
    """
    warnings = []
    rented = [offer for offer in offers if not offer.local]
    for bucket in spec.files.buckets:
        at = place_among(bucket.url, market.stores.places)
        price = egress_prices().get(at.cloud)
        if bucket.url.startswith("dataset://") or price is None:
            continue
        verb, often = _ACCESS[bucket.mode]
        mount = f"file_mounts.{bucket.target}: machines of"
        away = sorted({offer.cloud for offer in rented} - {at.cloud, "", HERE})
        if away:
            usd = price.first_microusd_per_gb / 1e6
            warnings.append(
                f"{mount} {', '.join(away)} {verb} {bucket.url} of {at.cloud} at "
                f"{format_usd(usd)} a GB, "
                f"{often} (list price of {price.dated}): the amount is unknown in advance, and "
                "it counts in the job's limits afterwards. A data set is copied to a "
                "region once: docs/stores.md"
            )
        regions = {offer.region for offer in rented if offer.cloud == at.cloud}
        if at.region and (others := sorted(regions - {at.region})):
            warnings.append(
                f"{mount} {at.cloud} in {', '.join(others)} {verb} {bucket.url} of {at.region}: "
                "its price is on no list and counts in no limit; `spotctl cost` shows how "
                "much it was"
            )
    return warnings
