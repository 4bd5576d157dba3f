"""Read HEAD, and list, verify, pin and remove checkpoints in a job's authority store.

Only `digests_of` and `Shard` know the content of a manifest. HEAD, pins and manifests are written
by machines with rights to their own job's folder alone, and read here with the box's rights to all
folders. So a name outside of that folder counts as damage and is never touched, and so does a store
in which the job may not have shards (MultiStore).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from providers.stores.base import NotFoundError, ObjectStore, StoreConfigError, StoreDeniedError
from providers.stores.base import StoreError as ObjectStoreError
from providers.stores.multi_store import other_store_urls, store_at
from spotd import wire
from spotd.domain.job import HeadSnapshot, Job
from spotd.store.interface import Store
from spotd.wire import Head, HeadRef, Manifest, Pin, SavedFolder, Shard

READ_BYTES = 8 << 20
LANES = 8  # manifests that are read at once


class DamagedError(Exception):
    """A checkpoint differs from its manifest, or from HEAD; the text names the object."""


@dataclass(frozen=True)
class StoredCheckpoint:
    """A checkpoint that HEAD or a pin names. `problem` is why there is no `manifest`."""

    ref: HeadRef
    pins: tuple[str, ...] = ()
    manifest: Manifest | None = None
    problem: str = ""

    @property
    def folder(self) -> str:
        return self.ref.manifest.rpartition("/")[0]

    @property
    def files(self) -> SavedFolder | None:
        """The program's own files that it consists of; None for one of our engine."""
        return wire.parse_saved_folder(self.manifest) if self.manifest else None


@dataclass(frozen=True)
class CheckpointList:
    """A job's checkpoints, newest first; `head` is None if no machine has claimed it yet."""

    head: Head | None
    saved: tuple[StoredCheckpoint, ...] = ()

    @property
    def newest(self) -> StoredCheckpoint | None:
        """Return the checkpoint that HEAD names, or None."""
        current = self.head.current if self.head else None
        return next((one for one in self.saved if one.ref == current), None)

    def find(self, name: str) -> StoredCheckpoint | None:
        """Return a checkpoint by step or pin name; "" is the newest."""
        if not name:
            return self.newest
        step = int(name) if name.isascii() and name.isdecimal() and len(name) < 20 else -1
        return next((one for one in self.saved if step == one.ref.step or name in one.pins), None)

    def shards_except(self, removed: StoredCheckpoint) -> set[tuple[str, str]]:
        """Return (store URL, key) of the shards that the other checkpoints need."""
        return {
            (shard.store, shard.key)
            for saved in self.saved
            if saved.ref != removed.ref and saved.manifest is not None
            for shard in saved.manifest.shards
        }


def read_kept(objects: ObjectStore, job_id: str) -> CheckpointList:
    """Read a job's checkpoints.

    Raises WireError if HEAD or a pin is unreadable, and store errors.
    """
    try:
        head = wire.parse_head(objects.get(wire.head_key(job_id))[0])
    except NotFoundError:
        head = None
    pins = list(read_pins(objects, job_id))
    chain = [ref for ref in (head.current, *head.previous) if ref] if head else []
    # In the chain, where it is in both: a pin that somebody else wrote does not hide it.
    refs = dict.fromkeys([*chain, *(pin.ref for pin in pins)])
    with ThreadPoolExecutor(LANES) as lanes:
        checkpoints = list(lanes.map(partial(_read_saved, objects, job_id, pins), refs))
    current = head.current if head else None
    # HEAD remembers more than retention keeps: what is gone is of nobody's concern.
    there = [
        one
        for one in checkpoints
        if one.manifest or one.pins or one.ref == current or not _gone(one)
    ]
    return CheckpointList(head, tuple(sorted(there, key=_order, reverse=True)))


def _order(one: StoredCheckpoint) -> tuple[int, int]:
    return one.ref.generation, one.ref.step


def _gone(one: StoredCheckpoint) -> bool:
    return one.problem.startswith("is gone")


def _of_job(job_id: str, key: str) -> bool:
    """Return whether the key is in the folder of the job's saves."""
    save = rf"jobs/{re.escape(job_id)}/g\d{{8}}/s\d{{12}}-[^/]+/[A-Za-z0-9][^/]*"
    return re.fullmatch(save, key) is not None


def _read_saved(
    objects: ObjectStore, job_id: str, pins: list[Pin], ref: HeadRef
) -> StoredCheckpoint:
    names = tuple(sorted(pin.name for pin in pins if pin.ref == ref))
    if not _of_job(job_id, ref.manifest):
        return StoredCheckpoint(ref, names, problem=f"{ref.manifest!r} is not in the job's folder")
    try:
        manifest = read_manifest(objects, ref)
        wire.parse_saved_folder(manifest)
        for shard in manifest.shards:
            if not _of_job(job_id, shard.key):
                return StoredCheckpoint(
                    ref, names, problem=f"{shard.key!r} is not in the job's folder"
                )
        try:
            for url in manifest.stores:
                store_at(objects, url)
        except StoreDeniedError as error:
            return StoredCheckpoint(ref, names, problem=str(error))
        return StoredCheckpoint(ref, names, manifest)
    except NotFoundError:
        return StoredCheckpoint(ref, names, problem=f"is gone: there is no {ref.manifest}")
    except (DamagedError, wire.WireError) as error:
        return StoredCheckpoint(ref, names, problem=str(error))


def read_pins(objects: ObjectStore, job_id: str) -> Iterator[Pin]:
    """Yield a job's pins. Raises WireError, which names the pin, and store errors."""
    for info in objects.list(wire.pin_folder(job_id)):
        try:
            yield wire.parse_pin(objects.get(info.key)[0])
        except NotFoundError:
            continue  # unpinned since it was listed
        except wire.WireError as error:
            raise wire.WireError(f"{info.key}: {error}") from None


def read_manifest(objects: ObjectStore, ref: HeadRef) -> Manifest:
    """Read a manifest. Raises DamagedError, NotFoundError and other store errors."""
    return parse_manifest(read_manifest_bytes(objects, ref), ref)


def read_manifest_bytes(objects: ObjectStore, ref: HeadRef) -> bytes:
    """Read a manifest's bytes. Raises DamagedError, NotFoundError and other store errors."""
    try:
        return objects.get(ref.manifest)[0]
    except StoreConfigError as error:
        raise DamagedError(str(error)) from None


def parse_manifest(data: bytes, ref: HeadRef) -> Manifest:
    """Parse a manifest. Raises DamagedError if HEAD or a pin says otherwise."""
    if wire.sha256(data) != ref.digest:
        raise DamagedError(f"{ref.manifest} has another digest than HEAD says")
    try:
        return wire.parse_manifest(data)
    except wire.WireError as error:
        raise DamagedError(f"{ref.manifest}: {error}") from None


def digests_of(shard: Shard) -> list[tuple[int, str, str]]:
    """Consecutive bytes, the kind of their digests, and the digests (hex)."""
    sizes = [min(shard.chunk, shard.size - at) for at in range(0, shard.size, shard.chunk)]
    pairs = zip(sizes, shard.digests, strict=False)  # of version 1, an empty shard has one as well
    return [(size, shard.kind, digest) for size, digest in pairs]


class ShardCheck:
    """Verifies a shard's bytes in order. Every call raises DamagedError as soon as it is known."""

    def __init__(self, shard: Shard) -> None:
        self._key = shard.key
        self._parts = digests_of(shard)
        self._at = self._left = 0
        self._begin()

    def feed(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            if not self._left:
                raise DamagedError(f"{self._key} has more bytes than its manifest says")
            part = view[: self._left]
            self._hash.update(part)
            self._left -= len(part)
            view = view[len(part) :]
            if not self._left:
                if self._hash.hexdigest() != self._parts[self._at][2]:
                    raise DamagedError(f"{self._key} has another digest than its manifest says")
                self._at += 1
                self._begin()

    def end(self) -> None:
        """Check that the shard is complete."""
        if self._left:
            raise DamagedError(f"{self._key} ends too early")

    def _begin(self) -> None:
        if self._at < len(self._parts):
            size, kind, _ = self._parts[self._at]
            self._left, self._hash = size, _hasher(self._key, kind)


def _hasher(key: str, kind: str) -> Any:
    if kind == "sha256":
        return hashlib.sha256()
    if kind == "xxh3":
        from xxhash import xxh3_128  # noqa: PLC0415 - of no other command

        return xxh3_128()
    raise DamagedError(f"{key} has a digest of the unknown kind {kind!r}")


def shard_bytes(objects: ObjectStore, shard: Shard) -> Iterator[bytes]:
    """Yield exactly the bytes that the manifest names. Raises DamagedError and store errors."""
    at, there = 0, store_at(objects, shard.store)
    while at < shard.size:
        try:
            data = there.get_range(shard.key, at, min(READ_BYTES, shard.size - at))
        except NotFoundError:
            raise DamagedError(f"{shard.key} is missing") from None
        except StoreConfigError as error:
            raise DamagedError(str(error)) from None
        if not data:
            raise DamagedError(f"{shard.key} ends too early")
        yield data
        at += len(data)


def verify_shard(objects: ObjectStore, shard: Shard) -> None:
    """Read all of it. Raises DamagedError and the store's errors."""
    check = ShardCheck(shard)
    for data in shard_bytes(objects, shard):
        check.feed(data)
    check.end()


def pin(objects: ObjectStore, job_id: str, made: Pin) -> None:
    """Pin a checkpoint under the name, which then pins no other. Raises DamagedError if parts of it
    are missing (retention may have been faster): then nothing is pinned. Raises store errors."""
    key = wire.pin_key(job_id, made.name)
    try:
        before: bytes | None = objects.get(key)[0]
    except NotFoundError:
        before = None
    objects.put(key, made.to_bytes())
    try:
        missing = _missing(objects, job_id, made)
    except DamagedError as error:
        missing = str(error)
    if missing:
        if before is None:
            objects.delete(key)
        else:
            objects.put(key, before)
        raise DamagedError(f"step {made.ref.step} is not all there any more: {missing}")


def _missing(objects: ObjectStore, job_id: str, made: Pin) -> str:
    if not _of_job(job_id, made.ref.manifest):
        return f"{made.ref.manifest!r} is not in the job's folder"
    try:
        manifest = read_manifest(objects, made.ref)
    except NotFoundError:
        return f"there is no {made.ref.manifest}"
    for shard in manifest.shards:
        if not _of_job(job_id, shard.key):
            return f"{shard.key!r} is not in the job's folder"
    folders = {(shard.store, shard.key.rpartition("/")[0]) for shard in manifest.shards}
    sizes = {
        (url, info.key): info.size
        for url, folder in folders
        for info in store_at(objects, url).list(f"{folder}/")
    }
    far = [s for s in manifest.shards if sizes.get((s.store, s.key), -1) != s.size]
    return f"{far[0].key} is missing or cut" if far else ""


def remove(
    objects: ObjectStore,
    job_id: str,
    saved: StoredCheckpoint,
    needed: Set[tuple[str, str]] = frozenset(),
) -> int:
    """Delete a checkpoint's objects, its manifest first: one that is half removed is none.

    Shards in `needed` (store URL, key), which other checkpoints share, stay. What a save that fell
    back to the authority has left in another store goes too, where that one answers. Returns the
    number of objects. Raises DamagedError for one outside of the job's folder, and the store's
    errors; then it can be done again.
    """
    if not _of_job(job_id, saved.ref.manifest):
        raise DamagedError(f"{saved.ref.manifest!r} is not in the job's folder")
    named = ("", *(saved.manifest.stores if saved.manifest else ()))
    listings = []
    for url in dict.fromkeys((*named, *other_store_urls(objects))):
        try:
            store = store_at(objects, url)
            listed = store.list(f"{saved.folder}/")
            listings.append((store, [info for info in listed if (url, info.key) not in needed]))
        except ObjectStoreError:
            if url in named:
                raise
    objects.delete(saved.ref.manifest)
    gone = 1
    for store, infos in listings:
        for info in infos:
            if info.key != saved.ref.manifest:
                store.delete(info.key)
                gone += 1
    return gone


def read_head(objects: ObjectStore, job_id: str, at_us: int) -> HeadSnapshot:
    """Return HEAD. Raises NotFoundError, other store errors, and WireError."""
    head = wire.parse_head(objects.get(wire.head_key(job_id))[0])
    current = head.current
    return HeadSnapshot(
        generation=head.generation,
        step=current.step if current else 0,
        manifest=current.manifest if current else "",
        released=head.released,
        final=head.final,
        seen_at_us=at_us,
        read_at_us=at_us,
    )


def record_head(store: Store, job: Job, seen: HeadSnapshot) -> None:
    """Record HEAD, and alert if it is ahead of the record.

    A generation is recorded before anything is done for it, so a HEAD that is ahead means that the
    record is older than the running machines.
    """
    store.jobs.record_head(job.id, seen)
    now = store.jobs.find(job.id)
    if now is not None and seen.generation > now.generation:
        text = (
            f"HEAD of {job.name} is of generation {seen.generation}, and the record of the job "
            f"ends at {now.generation}: the database is older than the fleet"
        )
        store.deployment.set_quarantine(text, seen.read_at_us)
