"""Whether what a job keeps has room where it is to lie, before anything is spent; and what reading
or copying from buckets costs."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from providers.base import Offer
from providers.catalogs.egress import egress_prices
from spotd.api.request.request import ApiContext, bad_input
from spotd.domain.job import JobSpec
from spotd.domain.market import Market
from spotd.planner.core.shard_stores import HERE, place_among
from spotd.sizing.checkpoint_size import bytes_a_parameter, checkpoint_bytes
from spotd.sizing.task import task_of
from spotd.spec.model import model_words
from spotd.wire import MountMode

GB = 1e9
# Of the local tier: the newest two of each rank, and the one that is being written
# (trainer/saver/disk.py). The system and the job's own files are not counted.
ON_DISK = 3
# Of a store, beyond what is kept: the one that is written, and the one before it, which is read
# back meanwhile. Of a folder in directory mode that is over before the next one is written.
_SPARE, _SPARE_COPIED = 2, 1
_NAMED = {1: "one", 2: "two"}
_WAYS = {
    MountMode.COPY: ("copy", "once a machine"),
    MountMode.MOUNT: ("read", "each time"),
    MountMode.MOUNT_CACHED: ("read", "once a machine"),
}


def size_of(backing: ApiContext, spec: JobSpec, text: str) -> tuple[int, str]:
    """What one checkpoint weighs, and by whose word; 0 where nobody knows. As the file says, as
    jobs of that name saved, or by the parameters of `spotd.model` where all are trained."""
    saves = spec.checkpoint
    if saves.engine == "none" and not saves.directory:
        return 0, ""
    if saves.size_bytes:
        return saves.size_bytes, "checkpoint.size"
    before = backing.store.find_job(spec.name)
    rows = backing.store.checkpoints(before.id) if before else []
    measured = [row.bytes for row in rows if row.bytes]
    if measured:
        return measured[-1], f"the last one of {spec.name}"
    words = model_words(text)
    if not words or saves.engine == "none":
        return 0, ""
    task = task_of(words)
    if task.run.frozen:  # whether the base is saved beside its adapters is the program's
        return 0, ""
    return checkpoint_bytes(task), f"{bytes_a_parameter(task):g} bytes a parameter of spotd.model"


def check_capacity(backing: ApiContext, spec: JobSpec, text: str) -> None:
    """Raises ApiError (bad input) where a folder of this box, or the machines' disk as the job asks
    for it, is too small. What a bucket holds has no end."""
    size, whose = size_of(backing, spec, text)
    if not size:
        return
    saves = spec.checkpoint
    if saves.store.startswith("file:"):
        folder = _there(Path(unquote(urlsplit(saves.store).path)))
        spare = _SPARE_COPIED if saves.engine == "none" else _SPARE
        free, need = shutil.disk_usage(folder).free, size * (saves.keep + spare)
        if need > free:
            fits = max(0, free // size - spare)
            raise bad_input(
                f"checkpoint.store {saves.store} has room for {free / GB:,.4g} GB, and the job "
                f"needs {need / GB:,.4g}: keep {saves.keep} and the next {_NAMED[spare]}, of "
                f"{size / GB:,.4g} GB each ({whose})",
                f"keep: {fits}, or a bucket" if fits else "free some, or name a bucket there",
            )
    need = ON_DISK * size // spec.num_nodes
    if saves.engine != "none" and spec.disk_gib and need > spec.disk_gib << 30:
        raise bad_input(
            f"disk_size is {spec.disk_gib} GiB, and each machine keeps {ON_DISK} snapshots of "
            f"{size / spec.num_nodes / GB:,.4g} GB ({whose}) on its disk while it saves: "
            f"{need / GB:,.4g} GB",
            f"disk_size: {-(-need >> 30) + 50} or more, 50 of it for all else; or leave it out",
        )


def _there(folder: Path) -> Path:
    """The folder, or the closest one above it that there is."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def streaming(spec: JobSpec, market: Market, offers: Iterable[Offer]) -> list[str]:
    """What is paid for each read of a mount that lies elsewhere, or each copy of it; `offers` are
    those of places that the job may run in."""
    found = []
    rented = [offer for offer in offers if not offer.local]
    for one in spec.buckets:
        at = place_among(one.url, market.places)
        price = egress_prices().get(at.cloud)
        if one.url.startswith("dataset://") or price is None:
            continue
        verb, often = _WAYS[one.mode]
        what = f"file_mounts.{one.target}: machines of"
        away = sorted({offer.cloud for offer in rented} - {at.cloud, "", HERE})
        if away:
            usd = price.first_microusd_per_gb / 1e6
            found.append(
                f"{what} {', '.join(away)} {verb} {one.url} of {at.cloud} at ${usd:.3g} a GB, "
                f"{often} (list price of {price.dated}): how much that will be nobody knows, and "
                "it counts in the job's limits afterwards. A data set is brought to a "
                "region once: docs/stores.md"
            )
        same = {offer.region for offer in rented if offer.cloud == at.cloud}
        if at.region and (others := sorted(same - {at.region})):
            found.append(
                f"{what} {at.cloud} in {', '.join(others)} {verb} {one.url} of {at.region}: what "
                "that costs is on no list, and counts in no limit; `spotctl cost` says how much "
                "it was"
            )
    return found
