"""Upload the changed files of a cache to the store."""

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

MAX_PARALLEL = 4  # parallel uploads, each with PART_BYTES of memory
_NONE = Index("", (), ())


class ChangedError(Exception):
    """The cache was modified while it was read, or saving was cancelled."""


@dataclass(frozen=True)
class Cache:
    """A cache of a job: `path` is its name in the job file, `folder` its location here."""

    store: ObjectStore
    job_id: str
    path: str
    folder: Path

    def index(self) -> tuple[Index | None, str | None]:
        """The stored index and its version tag, or None twice. Raises StoreError, WireError."""
        try:
            data, tag = self.store.get(index_key(self.job_id, self.path))
        except NotFoundError:
            return None, None
        return parse_index(data), tag


def save(cache: Cache, files: tuple[File, ...], should_continue: Callable[[], bool]) -> int:
    """Save `files`, the result of a scan; return the bytes uploaded.

    `should_continue` is called between parts; False cancels the save. On any error the index in the
    store stays as it was. Raises ChangedError, OSError and StoreError (ConflictError if another
    machine saved the cache meanwhile).
    """
    try:
        stored, tag = cache.index()
    except WireError:  # the stored index is unusable: replace it
        stored, tag = None, cache.store.get(index_key(cache.job_id, cache.path))[1]
    old = stored or _NONE
    by_path = {cached.file.path: cached for cached in old.files}
    unchanged = [
        by_path[file.path] for file in files if _is_unchanged(by_path.get(file.path), file)
    ]
    if len(unchanged) == len(files) == len(old.files):
        return 0
    parts: dict[Part, int] = {}
    new_files = [_renumber(cached, old, parts) for cached in unchanged]
    unchanged_paths = {cached.file.path for cached in unchanged}
    packer = _Packer(cache, parts, should_continue)
    new_files += packer.pack([file for file in files if file.path not in unchanged_paths])
    new_files.sort(key=lambda cached: cached.file.path)
    index = Index(cache.path, tuple(parts), tuple(new_files))
    cache.store.put_if(index_key(cache.job_id, cache.path), index.to_bytes(), tag)
    for part in set(old.parts) - set(parts):
        cache.store.delete(part_key(cache.job_id, part))
    return packer.sent


def _is_unchanged(cached: CachedFile | None, file: File) -> bool:
    return cached is not None and cached.file == file


def _renumber(cached: CachedFile, old: Index, parts: dict[Part, int]) -> CachedFile:
    """The file with its part numbers of the old index replaced by those in `parts`."""

    def number(piece: Piece) -> int:
        return parts.setdefault(old.parts[piece.part], len(parts))

    pieces = tuple(Piece(number(piece), piece.at, piece.size) for piece in cached.pieces)
    return CachedFile(cached.file, pieces)


class _Packer:
    """Concatenates files, cuts them into parts and uploads the parts."""

    def __init__(
        self, cache: Cache, parts: dict[Part, int], should_continue: Callable[[], bool]
    ) -> None:
        self._cache, self._parts, self._should_continue = cache, parts, should_continue
        self._data = bytearray()
        self._packed: list[tuple[File, list[tuple[int, int, int]]]] = []
        self._numbers: list[int] = []  # of the parts uploaded here, in order
        self._slots = threading.Semaphore(MAX_PARALLEL)
        self.sent = 0

    def pack(self, files: list[File]) -> list[CachedFile]:
        """Upload all the files; return them with their pieces."""
        with ThreadPoolExecutor(MAX_PARALLEL, thread_name_prefix="cache") as pool:
            jobs: list[Future[None]] = []
            for file in files:
                pieces: list[tuple[int, int, int]] = []
                self._packed.append((file, pieces))
                for data in [] if file.link else _read(self._cache.folder / file.path, file):
                    self._append(data, pieces, pool, jobs)
            self._flush(pool, jobs)
            for job in jobs:
                job.result()
        return [
            CachedFile(
                file, tuple(Piece(self._numbers[part], at, size) for part, at, size in pieces)
            )
            for file, pieces in self._packed
        ]

    def _append(
        self,
        data: bytes,
        pieces: list[tuple[int, int, int]],
        pool: ThreadPoolExecutor,
        jobs: list[Future[None]],
    ) -> None:
        while data:
            chunk = data[: PART_BYTES - len(self._data)]
            pieces.append((len(self._numbers), len(self._data), len(chunk)))
            self._data += chunk
            data = data[len(chunk) :]
            if len(self._data) == PART_BYTES:
                self._flush(pool, jobs)

    def _flush(self, pool: ThreadPoolExecutor, jobs: list[Future[None]]) -> None:
        if not self._should_continue():
            raise ChangedError("the save was cancelled")
        if not self._data:
            return
        data = bytes(self._data)
        self._data.clear()
        part = Part(hashlib.sha256(data).hexdigest(), len(data))
        self._numbers.append(self._parts.setdefault(part, len(self._parts)))
        self._slots.acquire()
        self.sent += len(data)
        jobs.append(pool.submit(self._put, part, data))

    def _put(self, part: Part, data: bytes) -> None:
        try:
            self._cache.store.put(part_key(self._cache.job_id, part), data)
        finally:
            self._slots.release()


def _read(path: Path, file: File) -> Iterator[bytes]:
    """Read the whole file. Raises ChangedError if it differs from the scan."""
    size = 0
    try:
        with path.open("rb") as opened:
            while data := opened.read(PART_BYTES):
                size += len(data)
                yield data
            status = path.lstat()
    except FileNotFoundError:
        raise ChangedError(f"{file.path} was removed") from None
    if (size, mtime_us(status)) != (file.size, file.mtime_us):
        raise ChangedError(f"{file.path} is still written to")
