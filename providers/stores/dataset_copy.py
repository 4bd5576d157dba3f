"""Copy a data set from its source store to another store, object by object and through memory.

A copy is complete when it has the marker object, which is written last. The writer holds a lease in
the copy, moved by compare-and-swap; after a writer dies the next one sends what is still missing.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from providers.stores.base import ConflictError, NotFoundError, ObjectInfo, ObjectStore, StoreError

# Bookkeeping objects beside the data. ORIGIN is a digest of the source listing being copied.
MARKER, LEASE, ORIGIN = "SPOTD-STAGED", "SPOTD-STAGING", "SPOTD-ORIGIN"
RENEW_S = 10.0
LEASE_EXPIRES_S = 60.0  # without a renewal
CHUNK_BYTES = 16 << 20  # held in memory; also the part size of multipart uploads
BATCH_BYTES, BATCH_FILES = 64 << 20, 500  # upper limits of one `permit` call


class DatasetCopyError(Exception):
    """The copy is not complete; the message says why and what to do."""


class CopyLock:
    """The lease to write a copy. Each writer has a CopyLock of its own."""

    def __init__(self, store: ObjectStore, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store, self._monotonic = store, monotonic
        self._owner = secrets.token_hex(8)
        self._tag = ""
        self._last_tag, self._unchanged_since_s = "", monotonic()

    def acquire(self) -> bool:
        """Try to take the lease; True if we hold it now.

        Call repeatedly: it succeeds once the holder has not renewed for LEASE_EXPIRES_S. Raises
        StoreError.
        """
        expired = self._last_tag and self._monotonic() >= self._unchanged_since_s + LEASE_EXPIRES_S
        if self._write(self._last_tag if expired else None):
            return True
        tag = self._current_tag()
        if tag != self._last_tag:
            self._last_tag, self._unchanged_since_s = tag, self._monotonic()
        return False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Renew the acquired lease during the block, then release it."""
        ended = threading.Event()
        renewals = threading.Thread(target=self._renew, args=(ended,), name="lease", daemon=True)
        renewals.start()
        try:
            yield
        finally:
            ended.set()
            renewals.join()
            with suppress(StoreError):
                if self._tag and self._current_tag() == self._tag:
                    self._store.delete(LEASE)

    def _renew(self, ended: threading.Event) -> None:
        while not ended.wait(RENEW_S):
            try:
                renewed = self._write(self._tag)
            except StoreError:
                continue  # the outcome is unknown; the next renewal shows it
            if not renewed:
                self._tag = ""
                return  # another writer took over; both send the same data, so that is harmless

    def _write(self, tag: str | None) -> bool:
        data = json.dumps({"who": self._owner, "beat": secrets.token_hex(4)}).encode()
        try:
            self._tag = self._store.put_if(LEASE, data, tag)
        except (ConflictError, NotFoundError):
            return False
        return True

    def _current_tag(self) -> str:
        try:
            return self._store.get(LEASE)[1]
        except NotFoundError:
            return ""


def is_data(item: ObjectInfo) -> bool:
    """Whether the object belongs to the data set: not a console's folder entry, nor bookkeeping."""
    return not item.key.endswith("/") and item.key not in (MARKER, LEASE, ORIGIN)


def is_complete(copy: ObjectStore) -> bool:
    """Whether the whole data set has been copied there. Raises StoreError."""
    try:
        copy.get(MARKER)
    except NotFoundError:
        return False
    return True


def list_data(store: ObjectStore) -> list[ObjectInfo]:
    """All objects of the data set in the store. Raises StoreError."""
    return [item for item in store.list("") if is_data(item)]


def missing_objects(wanted: Iterable[ObjectInfo], copy: ObjectStore) -> list[ObjectInfo]:
    """Objects of `wanted` that the copy lacks, compared by key and size. Raises StoreError."""
    sizes = {item.key: item.size for item in list_data(copy)}
    return [item for item in wanted if sizes.get(item.key) != item.size]


def record_origin(source: ObjectStore, wanted: Iterable[ObjectInfo], copy: ObjectStore) -> None:
    """Record which state of the source is being copied. Call with the lease, before sending.

    Raises DatasetCopyError if the copy has objects of an older state of the source: they may be
    outdated even where key and size match. Raises StoreError.
    """
    listing = sorted((item.key, item.size, item.tag) for item in wanted)
    data = hashlib.sha256(json.dumps(listing).encode()).hexdigest().encode()
    try:
        recorded, tag = copy.get(ORIGIN)
    except NotFoundError:
        with suppress(ConflictError):  # a writer that took our lease wrote the same
            copy.put_if(ORIGIN, data, None)
        return
    if recorded == data:
        return
    if list_data(copy):
        raise DatasetCopyError(
            f"{source.url} changed since the copy to {copy.url} started: delete that copy, or put "
            "new data under a new URL"
        )
    copy.put_if(ORIGIN, data, tag)


def request_counts(item: ObjectInfo) -> tuple[int, int]:
    """Reads and writes needed to copy the object: per chunk a HEAD, a GET and a PUT, plus two more
    writes to begin and end a multipart upload."""
    chunks = max(1, -(-item.size // CHUNK_BYTES))
    return 2 * chunks, chunks + (2 if chunks > 1 else 0)


def mark_complete(source: ObjectStore, wanted: Sequence[ObjectInfo], copy: ObjectStore) -> None:
    """Write the marker if the copy has all of `wanted` and the source has not changed. Raises
    DatasetCopyError, StoreError."""
    current = {item.key: (item.size, item.tag) for item in list_data(source)}
    if current != {item.key: (item.size, item.tag) for item in wanted}:
        raise DatasetCopyError(
            f"{source.url} changed while it was copied to {copy.url}: copy it when nothing "
            "writes to it"
        )
    if missing := missing_objects(wanted, copy):
        raise DatasetCopyError(f"{missing[0].key} is missing or has another size in {copy.url}")
    summary = {
        "from": source.url,
        "objects": len(wanted),
        "bytes": sum(item.size for item in wanted),
    }
    with suppress(ConflictError):  # a writer that took our lease was faster
        copy.put_if(MARKER, json.dumps(summary).encode(), None)


def copy_dataset(
    source: ObjectStore,
    copy: ObjectStore,
    permit: Callable[[Sequence[ObjectInfo]], None] = lambda _batch: None,
    on_bytes: Callable[[int], None] = lambda _size: None,
) -> int:
    """Copy the missing objects and write the marker; return the bytes copied.

    Hold the lease when calling. `permit(batch)` is called before each batch, `on_bytes(size)`
    after each chunk read; an exception from either ends the copy. Objects already copied stay, and
    a later call continues. Raises DatasetCopyError, StoreError.
    """
    wanted = list_data(source)
    if not wanted:
        raise DatasetCopyError(f"there is nothing below {source.url}: check the URL")
    record_origin(source, wanted, copy)
    missing = missing_objects(wanted, copy)
    for batch in _batches(missing):
        permit(batch)
        for item in batch:
            chunks = _chunks(source, item, on_bytes)
            copy.put(item.key, chunks if item.size > CHUNK_BYTES else b"".join(chunks))
    mark_complete(source, wanted, copy)
    return sum(item.size for item in missing)


def _chunks(
    source: ObjectStore, item: ObjectInfo, on_bytes: Callable[[int], None]
) -> Iterator[bytes]:
    for start in range(0, item.size, CHUNK_BYTES):
        size = min(CHUNK_BYTES, item.size - start)
        data = source.get_range(item.key, start, size)
        if len(data) != size:
            raise DatasetCopyError(f"{item.key} of {source.url} was truncated while it was copied")
        on_bytes(size)
        yield data


def _batches(items: Iterable[ObjectInfo]) -> Iterator[list[ObjectInfo]]:
    batch: list[ObjectInfo] = []
    size = 0
    for item in items:
        if batch and (size + item.size > BATCH_BYTES or len(batch) == BATCH_FILES):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += item.size
    if batch:
        yield batch
