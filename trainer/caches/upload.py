"""A cache on its way to the store: what changed since the last time, once it has settled."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from providers.stores.base import NotFoundError, ObjectStore
from spotd.wire import WireError
from trainer.caches.index import (
    PART_BYTES,
    CachedFile,
    Index,
    Part,
    Piece,
    index_key,
    parse_index,
    part_key,
)
from trainer.caches.tree import File, mtime_us

AT_ONCE = 4  # parts on their way up: so many times PART_BYTES of memory
_NONE = Index("", (), ())


class ChangedError(Exception):
    """The cache was written to while it was read: it has not settled."""


@dataclass(frozen=True)
class Cache:
    """One of a job's: `path` as the job names it, `folder` where that is on this machine."""

    store: ObjectStore
    job_id: str
    path: str
    folder: Path

    def index(self) -> tuple[Index | None, str | None]:
        """As the store has it, with its version tag. Raises StoreError, WireError."""
        try:
            data, tag = self.store.get(index_key(self.job_id, self.path))
        except NotFoundError:
            return None, None
        return parse_index(data), tag


def save(cache: Cache, seen: tuple[File, ...], go_on: Callable[[], bool]) -> int:
    """Have the store hold what was `seen`, and how many bytes that took. `go_on` is asked in
    between; False there ends it, as what changed does, with nothing changed in the index. Raises
    ChangedError, StoreError (ConflictError when another machine saved it meanwhile), OSError."""
    try:
        before, tag = cache.index()
    except WireError:  # nobody can use it: it is written anew
        before, tag = None, cache.store.get(index_key(cache.job_id, cache.path))[1]
    known = before or _NONE
    held = {one.file.path: one for one in known.files}
    same = [held[file.path] for file in seen if _same(held.get(file.path), file)]
    if len(same) == len(seen) == len(known.files):
        return 0
    parts: dict[Part, int] = {}
    files = [_moved(one, known, parts) for one in same]
    kept = {one.file.path for one in same}
    packing = _Packing(cache, parts, go_on)
    files += packing.pack([file for file in seen if file.path not in kept])
    made = Index(cache.path, tuple(parts), tuple(sorted(files, key=lambda one: one.file.path)))
    cache.store.put_if(index_key(cache.job_id, cache.path), made.to_bytes(), tag)
    for part in set(known.parts) - set(parts):
        cache.store.delete(part_key(cache.job_id, part))
    return packing.sent


def _same(held: CachedFile | None, file: File) -> bool:
    return held is not None and held.file == file


def _moved(one: CachedFile, known: Index, parts: dict[Part, int]) -> CachedFile:
    """With its pieces in `parts`, where each has its number."""

    def number(piece: Piece) -> int:
        return parts.setdefault(known.parts[piece.part], len(parts))

    pieces = tuple(Piece(number(piece), piece.at, piece.size) for piece in one.pieces)
    return CachedFile(one.file, pieces)


class _Packing:
    """Files one behind the other, cut into parts that go to the store."""

    def __init__(self, cache: Cache, parts: dict[Part, int], go_on: Callable[[], bool]) -> None:
        self._cache, self._parts, self._go_on = cache, parts, go_on
        self._data = bytearray()
        self._waiting: list[tuple[File, list[tuple[int, int, int]]]] = []
        self._numbers: list[int] = []  # of the parts made here, in order
        self._room = threading.Semaphore(AT_ONCE)
        self.sent = 0

    def pack(self, files: list[File]) -> list[CachedFile]:
        """All of them, in the store when it returns."""
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="cache") as pool:
            jobs: list[Future[None]] = []
            for file in files:
                pieces: list[tuple[int, int, int]] = []
                self._waiting.append((file, pieces))
                for data in [] if file.link else _read(self._cache.folder / file.path, file):
                    self._take(data, pieces, pool, jobs)
            self._flush(pool, jobs)
            for job in jobs:
                job.result()
        return [
            CachedFile(
                file, tuple(Piece(self._numbers[part], at, size) for part, at, size in pieces)
            )
            for file, pieces in self._waiting
        ]

    def _take(
        self,
        data: bytes,
        pieces: list[tuple[int, int, int]],
        pool: ThreadPoolExecutor,
        jobs: list[Future[None]],
    ) -> None:
        while data:
            some = data[: PART_BYTES - len(self._data)]
            pieces.append((len(self._numbers), len(self._data), len(some)))
            self._data += some
            data = data[len(some) :]
            if len(self._data) == PART_BYTES:
                self._flush(pool, jobs)

    def _flush(self, pool: ThreadPoolExecutor, jobs: list[Future[None]]) -> None:
        if not self._go_on():
            raise ChangedError("it is not to be saved any more")
        if not self._data:
            return
        data = bytes(self._data)
        self._data.clear()
        part = Part(hashlib.sha256(data).hexdigest(), len(data))
        self._numbers.append(self._parts.setdefault(part, len(self._parts)))
        self._room.acquire()
        self.sent += len(data)
        jobs.append(pool.submit(self._put, part, data))

    def _put(self, part: Part, data: bytes) -> None:
        try:
            self._cache.store.put(part_key(self._cache.job_id, part), data)
        finally:
            self._room.release()


def _read(path: Path, file: File) -> Iterator[bytes]:
    """All of it, as it was when it was looked at."""
    size = 0
    try:
        with path.open("rb") as opened:
            while data := opened.read(PART_BYTES):
                size += len(data)
                yield data
            found = path.lstat()
    except FileNotFoundError:
        raise ChangedError(f"{file.path} was removed") from None
    if (size, mtime_us(found)) != (file.size, file.mtime_us):
        raise ChangedError(f"{file.path} is still written to")
