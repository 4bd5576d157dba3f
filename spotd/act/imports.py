"""Write a checkpoint from elsewhere as the first one of a job that does not exist yet.

First the shards, each verified before it is written, then the manifest, then HEAD; the last two by
writes that only create. A job that has a HEAD is never written to, because only its owner may
commit. HEAD is left released, so that the job's first machine gets it at once.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from providers.stores.base import ConflictError, NotFoundError, ObjectStore
from spotd import wire
from spotd.wire import Head, HeadRef, Manifest, Shard

GENERATION = 1
NAME = "import"  # in place of the nonce that a save has in its folder's name
SHARD_BYTES = 128 << 20
CHUNK_BYTES = 16 << 20
KIND = "xxh3"


class JobIdTakenError(Exception):
    """The job, or something else that must not be overwritten, exists."""


class ImportMismatchError(Exception):
    """The import to commit differs from the uploaded data; the message has the difference."""


def shard_key(job_id: str, step: int, stream: int, number: int) -> str:
    """Return the key of an import's shard."""
    folder = manifest_key(job_id, step).rpartition("/")[0]
    return f"{folder}/r{stream:05d}-{number:05d}"


def manifest_key(job_id: str, step: int) -> str:
    """Return the key of an import's manifest."""
    return wire.manifest_key(job_id, GENERATION, step, NAME)


def is_imported(manifest: str) -> bool:
    """Return whether a manifest's key is that of an import."""
    return manifest.endswith(f"-{NAME}/MANIFEST.json")


def check_new(objects: ObjectStore, job_id: str) -> None:
    """Raise JobIdTakenError if the job has a HEAD. Raises store errors, too."""
    try:
        objects.get(wire.head_key(job_id))
    except NotFoundError:
        return
    raise JobIdTakenError(f"job {job_id} has checkpoints already")


def put_shard(objects: ObjectStore, job_id: str, shard: Shard, data: Path) -> None:
    """Write verified bytes. Raises TakenError and the store's errors."""
    check_new(objects, job_id)
    objects.put(shard.key, data)


def commit(objects: ObjectStore, manifest: Manifest, nonce: str) -> HeadRef:
    """Have HEAD name it; the same again changes nothing. Raises UnfitError, TakenError and the
    store's errors."""
    key = manifest_key(manifest.job, manifest.step)
    _check(objects, manifest, key)
    data = manifest.to_bytes()
    ref = HeadRef(GENERATION, manifest.step, key, wire.sha256(data))
    head = Head(manifest.job, GENERATION, 1, nonce, NAME, ref, released=True)
    _create(objects, key, data)
    try:
        objects.put_if(wire.head_key(manifest.job), head.to_bytes(), None)
    except ConflictError:
        current = wire.parse_head(objects.get(wire.head_key(manifest.job))[0])
        if replace(current, nonce=nonce) != head:
            raise JobIdTakenError(f"job {manifest.job} has checkpoints already") from None
    return ref


def _create(objects: ObjectStore, key: str, data: bytes) -> None:
    try:
        objects.put_if(key, data, None)
    except ConflictError:
        if objects.get(key)[0] != data:
            raise JobIdTakenError(f"{key} already exists with other content") from None


def _check(objects: ObjectStore, manifest: Manifest, key: str) -> None:
    folder = key.rpartition("/")[0]
    there = {info.key: info.size for info in objects.list(f"{folder}/")}
    for shard in manifest.shards:
        if there.get(shard.key) != shard.size:
            raise ImportMismatchError(f"{shard.key} is missing or incomplete")
