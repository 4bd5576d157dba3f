"""Bytes of a committed checkpoint, from wherever they are nearest: this machine's memory, its disk,
the bucket. Each chunk is verified against the manifest on its way, whatever it came from, so that a
nearer copy that is damaged or of something else only costs the way to the next."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from providers.stores.base import ObjectStore, StoreConfigError
from providers.stores.several import store_at
from spotd.wire import HeadRef, Manifest, Shard, WireError, parse_manifest, sha256

MOST_BYTES = 1 << 30  # of a chunk that is wanted in part


class CorruptError(Exception):
    """A checkpoint's bytes are not what its manifest says; the text says which."""


@dataclass(frozen=True)
class Range:
    """Bytes of a stream."""

    stream: int
    start: int
    size: int


class LocalCopy(Protocol):
    """A copy on this machine."""

    name: str

    def read(self, stream: int, start: int, into: memoryview) -> bool:
        """Fill `into` with those bytes of a stream, if it has them; they need not be right."""
        ...


@dataclass
class BytesBySource:
    """Bytes by the name of where they came from."""

    bytes: dict[str, int]

    def count(self, name: str, size: int) -> None:
        self.bytes[name] = self.bytes.get(name, 0) + size


def read_manifest(store: ObjectStore, ref: HeadRef) -> Manifest:
    """The manifest that HEAD names. Raises CorruptError, NotFoundError and other store errors."""
    with _named():
        data = store.get(ref.manifest)[0]
    if sha256(data) != ref.digest:
        raise CorruptError(f"{ref.manifest} has another digest than HEAD says")
    try:
        return parse_manifest(data)
    except WireError as error:
        raise CorruptError(f"{ref.manifest}: {error}") from None


@dataclass(frozen=True)
class Chunk:
    """Part of a stream that one digest covers; `at` is where it begins in its shard."""

    stream: int
    start: int
    shard: Shard
    at: int
    size: int
    digest: str


def chunks_in(manifest: Manifest, wanted: Range) -> Iterator[Chunk]:
    """The chunks that hold a range, in order. Raises CorruptError for one outside its stream."""
    if wanted.stream >= len(manifest.streams):
        raise CorruptError(f"the manifest has no stream {wanted.stream}")
    begin, end, start = wanted.start, wanted.start + wanted.size, 0
    for shard in manifest.streams[wanted.stream].shards:
        for number, digest in enumerate(shard.digests):
            at = number * shard.chunk
            size = min(shard.chunk, shard.size - at)
            if start + at < end and start + at + size > begin:
                yield Chunk(wanted.stream, start + at, shard, at, size, digest)
        start += shard.size
    if end > start:
        raise CorruptError(f"stream {wanted.stream} ends at {start}, before {end}")


def all_chunks(manifest: Manifest) -> Iterator[Chunk]:
    """All of it, in order."""
    for number, stream in enumerate(manifest.streams):
        yield from chunks_in(manifest, Range(number, 0, stream.size))


class Reader:
    """Of one checkpoint. `nearer` copies are tried in order before the bucket."""

    def __init__(
        self, store: ObjectStore, manifest: Manifest, nearer: Sequence[LocalCopy], pool: Executor
    ) -> None:
        self._store, self._manifest = store, manifest
        self._nearer, self._pool = nearer, pool
        self.tally = BytesBySource({})

    def fill(self, into: memoryview, ranges: Iterable[Range], told: Callable[[int], None]) -> None:
        """The ranges one behind the other; `told` hears how many bytes, from the first on, are
        there and verified. Raises CorruptError, NotFoundError and other store errors."""
        jobs, at = [], 0
        for wanted in ranges:
            for chunk in chunks_in(self._manifest, wanted):
                skip = max(wanted.start - chunk.start, 0)
                until = min(wanted.start + wanted.size - chunk.start, chunk.size)
                target = into[at : at + until - skip]
                at += until - skip
                jobs.append((at, self._pool.submit(self._one, chunk, skip, target)))
        failed: BaseException | None = None
        for end, job in jobs:
            if failed is not None:
                job.cancel()
                continue
            failed = job.exception()
            if failed is None:
                told(end)
        if failed is not None:
            for _, job in jobs:
                if not job.cancelled():
                    job.exception()
            raise failed

    def _one(self, chunk: Chunk, skip: int, target: memoryview) -> None:
        if not skip and len(target) == chunk.size:
            self._read(chunk, target)
            return
        if chunk.size > MOST_BYTES:
            raise CorruptError(f"{chunk.shard.key} is of parts that are too large: {chunk.size}")
        whole = memoryview(bytearray(chunk.size))
        self._read(chunk, whole)
        target[:] = whole[skip : skip + len(target)]

    def _read(self, chunk: Chunk, into: memoryview) -> None:
        for copy in self._nearer:
            if copy.read(chunk.stream, chunk.start, into) and _digest(chunk, into) == chunk.digest:
                self.tally.count(copy.name, chunk.size)
                return
        into[:] = read_chunk(self._store, chunk)
        self.tally.count("bucket", chunk.size)


def read_chunk(store: ObjectStore, chunk: Chunk) -> bytes:
    """One chunk from the bucket that has it, `store` or another, verified. Raises CorruptError,
    NotFoundError and store errors, StoreDeniedError where it is in one that is not ours to read."""
    with _named():
        data = store_at(store, chunk.shard.store).get_range(chunk.shard.key, chunk.at, chunk.size)
    if len(data) != chunk.size:
        has, key = chunk.at + len(data), chunk.shard.key
        raise CorruptError(f"{key} has {has} bytes instead of {chunk.shard.size}")
    if _digest(chunk, data) != chunk.digest:
        raise CorruptError(f"{chunk.shard.key} has another digest than its manifest says")
    return data


def verify(store: ObjectStore, manifest: Manifest, go_on: Callable[[], bool]) -> bool:
    """Read all of it back from the bucket; False if `go_on` said no half-way. Raises CorruptError,
    NotFoundError and other store errors."""
    for chunk in all_chunks(manifest):
        if not go_on():
            return False
        read_chunk(store, chunk)
    return True


def read_stream(store: ObjectStore, manifest: Manifest, number: int) -> bytes:
    """A whole stream from the bucket, verified. Raises as `verify`."""
    wanted = Range(number, 0, manifest.streams[number].size)
    return b"".join(read_chunk(store, chunk) for chunk in chunks_in(manifest, wanted))


def _digest(chunk: Chunk, data: memoryview | bytes) -> str:
    if chunk.shard.kind == "xxh3":
        import xxhash  # noqa: PLC0415 - the agent, which has none, reads what it wrote itself

        return xxhash.xxh3_128_hexdigest(data)
    if chunk.shard.kind == "sha256":
        return hashlib.sha256(data).hexdigest()
    raise CorruptError(f"{chunk.shard.key} has a digest of the unknown kind {chunk.shard.kind!r}")


@contextmanager
def _named() -> Iterator[None]:
    """Of what HEAD or a manifest names: a name that no store takes is damage."""
    try:
        yield
    except StoreConfigError as error:
        raise CorruptError(str(error)) from None
