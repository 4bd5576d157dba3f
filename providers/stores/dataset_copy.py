"""A data set brought from the store that it is declared in to another one, object by object and
through memory alone: whole when the marker is there, which comes last.

Whoever brings it has the turn: a lease in the copy that is moved by compare-and-swap. One that has
died is followed by the next, which sends what is not there yet.
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

# Beside the data, and none of it. `ORIGIN` says of which state of the source the objects there are.
MARKER, LEASE, ORIGIN = "SPOTD-STAGED", "SPOTD-STAGING", "SPOTD-ORIGIN"
BEAT_S = 10.0
GONE_AFTER_S = 60.0  # without a beat, and whoever brought it is gone
PIECE_BYTES = 16 << 20  # that is in memory, and a part of what is written in parts
BATCH_BYTES, BATCH_FILES = 64 << 20, 500  # that are permitted together, where objects are small


class DatasetCopyError(Exception):
    """It is not all there; the text says why, and what to do."""


class CopyLock:
    """Whose turn it is to write a copy. One object for each who wants it."""

    def __init__(self, store: ObjectStore, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store, self._monotonic = store, monotonic
        self._who = secrets.token_hex(8)
        self._tag = ""
        self._seen, self._since_s = "", monotonic()

    def take(self) -> bool:
        """Whether it is ours now. Asked for again and again it is, once whoever has it has not
        been heard of for GONE_AFTER_S. Raises StoreError."""
        gone = self._seen and self._monotonic() >= self._since_s + GONE_AFTER_S
        if self._put(self._seen if gone else None):
            return True
        now = self._found()
        if now != self._seen:
            self._seen, self._since_s = now, self._monotonic()
        return False

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Once it is ours: for the length of the block; then it is anybody's."""
        ended = threading.Event()
        beats = threading.Thread(target=self._beat, args=(ended,), name="turn", daemon=True)
        beats.start()
        try:
            yield
        finally:
            ended.set()
            beats.join()
            with suppress(StoreError):
                if self._tag and self._found() == self._tag:
                    self._store.delete(LEASE)

    def _beat(self, ended: threading.Event) -> None:
        while not ended.wait(BEAT_S):
            try:
                mine = self._put(self._tag)
            except StoreError:
                continue  # it may have happened: the next one says
            if not mine:
                self._tag = ""
                return  # somebody thought that we were gone: what both send is the same

    def _put(self, tag: str | None) -> bool:
        data = json.dumps({"who": self._who, "beat": secrets.token_hex(4)}).encode()
        try:
            self._tag = self._store.put_if(LEASE, data, tag)
        except (ConflictError, NotFoundError):
            return False
        return True

    def _found(self) -> str:
        try:
            return self._store.get(LEASE)[1]
        except NotFoundError:
            return ""


def is_data(one: ObjectInfo) -> bool:
    """Whether it is of the data, and not what consoles make for folders, or what is beside it."""
    return not one.key.endswith("/") and one.key not in (MARKER, LEASE, ORIGIN)


def is_whole(near: ObjectStore) -> bool:
    """Whether all of it was brought there. Raises StoreError."""
    try:
        near.get(MARKER)
    except NotFoundError:
        return False
    return True


def data_of(store: ObjectStore) -> list[ObjectInfo]:
    """All that it has of the data. Raises StoreError."""
    return [one for one in store.list("") if is_data(one)]


def lacking(wanted: Iterable[ObjectInfo], near: ObjectStore) -> list[ObjectInfo]:
    """What of `wanted` is not there, by name and size. Raises StoreError."""
    there = {one.key: one.size for one in data_of(near)}
    return [one for one in wanted if there.get(one.key) != one.size]


def begin(source: ObjectStore, wanted: Iterable[ObjectInfo], near: ObjectStore) -> None:
    """Before objects are sent, by whoever has the turn: of a copy that somebody else began, those
    that are there are no use where the source has changed since, and of the same name and size
    they may be. Raises BringError, StoreError."""
    told = sorted((one.key, one.size, one.tag) for one in wanted)
    data = hashlib.sha256(json.dumps(told).encode()).hexdigest().encode()
    try:
        known, tag = near.get(ORIGIN)
    except NotFoundError:
        with suppress(ConflictError):  # the same of somebody who thought that we were gone
            near.put_if(ORIGIN, data, None)
        return
    if known == data:
        return
    if data_of(near):
        raise DatasetCopyError(
            f"{source.url} changed since {near.url} was begun: empty that, or name new data anew"
        )
    near.put_if(ORIGIN, data, tag)


def requests_of(one: ObjectInfo) -> tuple[int, int]:
    """Reads and writes that it takes to bring that object: for each piece a look and a read, and a
    write; and two more writes around those of parts."""
    pieces = max(1, -(-one.size // PIECE_BYTES))
    return 2 * pieces, pieces + (2 if pieces > 1 else 0)


def finish(source: ObjectStore, wanted: Sequence[ObjectInfo], near: ObjectStore) -> None:
    """Leave the marker, if all that was wanted is there, and the source has it still. Raises
    BringError, StoreError."""
    now = {one.key: (one.size, one.tag) for one in data_of(source)}
    if now != {one.key: (one.size, one.tag) for one in wanted}:
        raise DatasetCopyError(
            f"{source.url} changed while it was brought to {near.url}: bring it when nobody "
            "writes there"
        )
    if differs := lacking(wanted, near):
        raise DatasetCopyError(f"{differs[0].key} did not arrive in {near.url} as it was sent")
    told = {"from": source.url, "objects": len(wanted), "bytes": sum(one.size for one in wanted)}
    with suppress(ConflictError):  # another one that went on after us was faster
        near.put_if(MARKER, json.dumps(told).encode(), None)


def bring(
    source: ObjectStore,
    near: ObjectStore,
    permit: Callable[[Sequence[ObjectInfo]], None] = lambda _batch: None,
    came: Callable[[int], None] = lambda _size: None,
) -> int:
    """Bring what is not there yet, and leave the marker; how many bytes came. `permit(batch)` is
    asked before each few objects, `came(size)` is told of each piece; what either raises ends it,
    with the objects there that were sent whole. Whoever calls has the turn. Raises BringError,
    StoreError; called again, it goes on."""
    wanted = data_of(source)
    if not wanted:
        raise DatasetCopyError(f"there is nothing below {source.url}: look at the address")
    begin(source, wanted, near)
    missing = lacking(wanted, near)
    for batch in _batches(missing):
        permit(batch)
        for one in batch:
            pieces = _pieces(source, one, came)
            near.put(one.key, pieces if one.size > PIECE_BYTES else b"".join(pieces))
    finish(source, wanted, near)
    return sum(one.size for one in missing)


def _pieces(source: ObjectStore, one: ObjectInfo, came: Callable[[int], None]) -> Iterator[bytes]:
    for start in range(0, one.size, PIECE_BYTES):
        size = min(PIECE_BYTES, one.size - start)
        data = source.get_range(one.key, start, size)
        if len(data) != size:
            raise DatasetCopyError(f"{one.key} of {source.url} became shorter")
        came(size)
        yield data


def _batches(files: Iterable[ObjectInfo]) -> Iterator[list[ObjectInfo]]:
    batch: list[ObjectInfo] = []
    size = 0
    for one in files:
        if batch and (size + one.size > BATCH_BYTES or len(batch) == BATCH_FILES):
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += one.size
    if batch:
        yield batch
