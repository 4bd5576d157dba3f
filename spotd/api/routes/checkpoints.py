"""Routes about a job's checkpoints, which use the daemon's own access to the store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

from providers.stores.base import ObjectStore
from providers.stores.multi_store import MultiStore
from spotd import wire
from spotd.act.checkpoints import (
    CheckpointList,
    DamagedError,
    StoredCheckpoint,
    pin,
    read_kept,
    read_manifest_bytes,
    remove,
    shard_bytes,
    verify_shard,
)
from spotd.api.request.request import ApiRequest, bad_input, conflict, not_found
from spotd.api.views.resources import iso
from spotd.domain.job import Job
from spotd.planner.core.shard_stores import may_have_shards


def list_checkpoints(call: ApiRequest) -> dict[str, Any]:
    """List the checkpoints that HEAD and the pins of a job name, newest first."""
    job = call.job()
    checkpoints = read_checkpoints(call, job)
    head = checkpoints.head
    return {
        "kind": "CheckpointList",
        "job": job.name,
        "id": job.id,
        "store": job.spec.checkpoint.store,
        "generation": head.generation if head else 0,
        "released": bool(head and head.released),
        "final": bool(head and head.final),
        "items": [_item(call, checkpoints, saved) for saved in checkpoints.saved],
    }


def _item(call: ApiRequest, checkpoints: CheckpointList, saved: StoredCheckpoint) -> dict[str, Any]:
    manifest, files = saved.manifest, saved.files
    return {
        "step": saved.ref.step,
        "generation": saved.ref.generation,
        "created_at": iso(manifest.created_at_us) if manifest else None,
        "age_s": round((call.now_us - manifest.created_at_us) / 1e6, 1) if manifest else None,
        "bytes": sum(shard.size for shard in manifest.shards) if manifest else 0,
        "numbered": files is None or files.number is not None,
        "units": [] if files is None or manifest is None else _units(manifest, files),
        "shards": len(manifest.shards) if manifest else 0,
        "stores": list(manifest.stores) if manifest else [],
        "newest": saved == checkpoints.newest,
        "pins": list(saved.pins),
        "manifest": saved.ref.manifest,
        "digest": saved.ref.digest,
        "problem": saved.problem,
    }


def _units(manifest: wire.Manifest, files: wire.SavedFolder) -> list[dict[str, Any]]:
    """The program's own checkpoints and files in it, the newest one first."""
    units = dict.fromkeys(reversed(files.units), 0)
    for file, stream in zip(files.files, manifest.streams, strict=True):
        units[file.unit] += stream.size
    names = sorted(units, key=lambda name: name != files.newest)
    return [{"name": name, "bytes": units[name]} for name in names]


def verify_checkpoint(call: ApiRequest) -> dict[str, Any]:
    """Read one whole shard (`shard`, from 0) of a checkpoint, and check its digest.

    `damage` describes the problem, or is "". For a checkpoint without shards it is about the
    manifest. The caller continues with the next shard.
    """
    objects, _, saved = _find_checkpoint(call, call.text("name"))
    number = call.number("shard", 0, 0, 1 << 31)
    damage, shards = saved.problem, saved.manifest.shards if saved.manifest else ()
    if number < len(shards):
        try:
            verify_shard(objects, shards[number])
        except DamagedError as error:
            damage = str(error)
    return {
        "kind": "CheckpointVerified",
        "step": saved.ref.step,
        "generation": saved.ref.generation,
        "shard": number,
        "shards": len(shards),
        "bytes": shards[number].size if number < len(shards) else 0,
        "total_bytes": sum(shard.size for shard in shards),
        "damage": damage,
    }


def pull_checkpoint(call: ApiRequest) -> Iterator[bytes]:
    """Stream a line of JSON that names the checkpoint, its manifest, and its shards from number
    `first` on. With `unit` only the shards of that unit of a program's folder."""
    objects, _, saved = _find_checkpoint(call, call.query.get("name", ""))
    first, unit = call.number("first", 0, 0, 1 << 31), call.query.get("unit", "")
    if saved.manifest is None:
        raise conflict(f"step {saved.ref.step} {saved.problem}", "spotctl ckpt ls names the others")
    data = read_manifest_bytes(objects, saved.ref)
    header = download_header(saved.ref, data)
    try:
        shards = wire.shards_of_unit(saved.manifest, unit)[first:]
    except KeyError:
        message = f"step {saved.ref.step} has no {unit!r}"
        raise not_found(message, "spotctl ckpt ls -o json names the units of each") from None

    def run() -> Iterator[bytes]:
        yield header
        for shard in shards:
            yield from shard_bytes(objects, shard)

    return run()


def download_header(ref: wire.HeadRef, manifest: bytes) -> bytes:
    """Return the start of a download: a line of JSON, and the manifest."""
    fields = {"generation": ref.generation, "step": ref.step, "manifest": ref.manifest}
    line = json.dumps({**fields, "digest": ref.digest, "bytes": len(manifest)})
    return line.encode() + b"\n" + manifest


def pin_checkpoint(call: ApiRequest) -> dict[str, Any]:
    """Keep a checkpoint, whatever retention says, until it is unpinned."""
    objects, job, saved = _find_checkpoint(call, call.text("name"))
    name = call.text("pin")
    new_pin = wire.Pin(name, saved.ref, call.now_us, call.actor)
    _check_name(job, name)
    try:
        pin(objects, job.id, new_pin)
    except DamagedError as error:
        raise conflict(str(error), f"spotctl ckpt ls {job.name}, and pin an existing one") from None
    return {"kind": "Pin", "job": job.name, "pin": name, "step": saved.ref.step}


def unpin_checkpoint(call: ApiRequest) -> dict[str, Any]:
    """Remove a pin; retention then deletes the checkpoint when it is old."""
    job, name = call.job(), call.text("pin")
    key = _check_name(job, name)
    objects = call.context.storage.open_store(job.spec.checkpoint.store)
    if key not in {info.key for info in objects.list(wire.pin_folder(job.id))}:
        raise not_found(f"job {job.name} has no pin {name!r}", f"spotctl ckpt ls {job.name}")
    objects.delete(key)
    return {"kind": "Pin", "job": job.name, "pin": name, "step": None}


def _check_name(job: Job, name: str) -> str:
    try:
        return wire.pin_key(job.id, name)
    except ValueError as error:
        raise bad_input(str(error), "for example best") from None


def remove_checkpoint(call: ApiRequest) -> dict[str, Any]:
    """Delete one checkpoint, but never a pinned one or the newest of an unfinished job. Deleting
    the newest of a finished job needs `last`."""
    name = call.text("name")
    if not name:
        raise bad_input("name is missing", "name a step: spotctl ckpt ls")
    objects, job, saved = _find_checkpoint(call, name)
    checkpoints = read_kept(objects, job.id)  # read again: it may have changed
    if saved.pins:
        pins = ", ".join(saved.pins)
        advice = f"spotctl ckpt unpin {job.name} {saved.pins[0]} first"
        raise conflict(f"step {saved.ref.step} is pinned as {pins}", advice)
    if checkpoints.head is not None and saved.ref == checkpoints.head.current:
        if job.outcome is None:
            message = f"step {saved.ref.step} is the newest, and job {job.name} resumes from it"
            raise conflict(message, f"spotctl cancel {job.name} first, or remove an older one")
        if call.body.get("last") is not True:
            message = (
                f"step {saved.ref.step} is the newest: job {job.name} would have no checkpoint left"
            )
            raise conflict(message, "add --last to delete it anyway")
    newest = checkpoints.newest
    if job.outcome is None and newest is not None and newest.problem and not saved.problem:
        message = (
            f"the newest, step {newest.ref.step}, {newest.problem}: job {job.name} needs the older "
            "ones"
        )
        raise conflict(message, f"spotctl cancel {job.name} first, or wait for its next checkpoint")
    try:
        count = remove(objects, job.id, saved, checkpoints.shards_except(saved))
    except DamagedError as error:
        raise conflict(
            str(error), "find out who wrote it: `spotctl audit`, and the machine's log"
        ) from None
    call.context.store.checkpoints.record_removed(job.id, saved.ref.manifest, call.now_us)
    return {"kind": "Removed", "job": job.name, "step": saved.ref.step, "objects": count}


def _find_checkpoint(call: ApiRequest, name: str) -> tuple[ObjectStore, Job, StoredCheckpoint]:
    """Return a job's checkpoint by its step or a pin; "" is the newest.

    Raises ApiError (not found).
    """
    job = call.job()
    objects = open_stores(call, job)
    checkpoints = read_checkpoints(call, job)
    saved = checkpoints.find(name)
    if saved is None:
        steps = (
            ", ".join(dict.fromkeys(str(other.ref.step) for other in checkpoints.saved)) or "none"
        )
        missing = f"no checkpoint {name!r}" if name else "no checkpoint yet"
        raise not_found(f"job {job.name} has {missing}; there are: {steps}", "spotctl ckpt ls")
    return objects, job, saved


def open_stores(call: ApiRequest, job: Job) -> ObjectStore:
    """Return the job's own store, combined with the stores that may have its shards."""
    context = call.context
    others = may_have_shards(job.spec, context.market(call.now_us).stores.shards)
    own = context.storage.open_store(job.spec.checkpoint.store)
    return MultiStore(own, {url: partial(context.storage.open_store, url) for url in others})


def read_checkpoints(call: ApiRequest, job: Job) -> CheckpointList:
    """Read the checkpoints of a job. Raises ApiError (conflict) if they are unreadable."""
    try:
        return read_kept(open_stores(call, job), job.id)
    except wire.WireError as error:
        message = f"the checkpoints of job {job.name} in {job.spec.checkpoint.store}: {error}"
        raise conflict(message, "restore this object from a copy of the bucket") from None
