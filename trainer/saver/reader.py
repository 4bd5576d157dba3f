"""Read the bytes of a committed checkpoint from the nearest copy: memory, disk or store.

Each chunk is verified against the manifest, wherever it came from, so a damaged or wrong local copy
costs only the read of the next copy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from providers.stores.base import ObjectStore, StoreConfigError
from providers.stores.multi_store import store_at
from spotd.wire import HeadRef, Manifest, Shard, WireError, parse_manifest, sha256

MAX_PARTIAL_CHUNK_BYTES = 1 << 30  # largest chunk read to use only a part of it


class CorruptError(Exception):
    """A checkpoint's bytes differ from its manifest; the text says which."""


@dataclass(frozen=True)
class Range:
    """A range of bytes of a stream."""

    stream: int
    start: int
    size: int


class LocalCopy(Protocol):
    """A copy of a checkpoint on this machine."""

    name: str

    def read(self, stream: int, start: int, into: memoryview) -> bool:
        """Fill `into` with those bytes of a stream and return True, if this copy has them.

        The caller verifies them.
        """
        ...


@dataclass
class BytesBySource:
    """Bytes read, by the name of the copy they came from."""

    bytes: dict[str, int]

    def count(self, name: str, size: int) -> None:
        self.bytes[name] = self.bytes.get(name, 0) + size


def read_manifest(store: ObjectStore, ref: HeadRef) -> Manifest:
    """Return the manifest that HEAD names. Raises CorruptError and store errors."""
    with _invalid_keys_as_corrupt():
        data = store.get(ref.manifest)[0]
    if sha256(data) != ref.digest:
        raise CorruptError(f"{ref.manifest} has another digest than HEAD says")
    try:
        return parse_manifest(data)
    except WireError as error:
        raise CorruptError(f"{ref.manifest}: {error}") from None


@dataclass(frozen=True)
class Chunk:
    """The part of a stream that one digest covers; `offset` is its position in its shard."""

    stream: int
    start: int
    shard: Shard
    offset: int
    size: int
    digest: str


def chunks_in(manifest: Manifest, wanted: Range) -> Iterator[Chunk]:
    """Yield the chunks that overlap a range, in order. Raises CorruptError outside the stream."""
    if wanted.stream >= len(manifest.streams):
        raise CorruptError(f"the manifest has no stream {wanted.stream}")
    begin, end, start = wanted.start, wanted.start + wanted.size, 0
    for shard in manifest.streams[wanted.stream].shards:
        for number, digest in enumerate(shard.digests):
            offset = number * shard.chunk
            size = min(shard.chunk, shard.size - offset)
            if start + offset < end and start + offset + size > begin:
                yield Chunk(wanted.stream, start + offset, shard, offset, size, digest)
        start += shard.size
    if end > start:
        raise CorruptError(f"stream {wanted.stream} ends at {start}, before {end}")


def all_chunks(manifest: Manifest) -> Iterator[Chunk]:
    """Yield all chunks of a checkpoint, in order."""
    for number, stream in enumerate(manifest.streams):
        yield from chunks_in(manifest, Range(number, 0, stream.size))


class Reader:
    """Reads one checkpoint. `local_copies` are tried in order before the store."""

    def __init__(
        self,
        store: ObjectStore,
        manifest: Manifest,
        local_copies: Sequence[LocalCopy],
        pool: Executor,
    ) -> None:
        self._store, self._manifest = store, manifest
        self._local_copies, self._pool = local_copies, pool
        self.bytes_by_source = BytesBySource({})

    def fill(
        self, into: memoryview, ranges: Iterable[Range], on_progress: Callable[[int], None]
    ) -> None:
        """Read the ranges one after the other into `into`.

        `on_progress` receives the number of leading bytes that are complete and verified. Raises
        CorruptError, NotFoundError and other store errors.
        """
        jobs, offset = [], 0
        for wanted in ranges:
            for chunk in chunks_in(self._manifest, wanted):
                skip = max(wanted.start - chunk.start, 0)
                end = min(wanted.start + wanted.size - chunk.start, chunk.size)
                target = into[offset : offset + end - skip]
                offset += end - skip
                jobs.append((offset, self._pool.submit(self._read_range, chunk, skip, target)))
        failed: BaseException | None = None
        for end, job in jobs:
            if failed is not None:
                job.cancel()
                continue
            failed = job.exception()
            if failed is None:
                on_progress(end)
        if failed is not None:
            for _, job in jobs:
                if not job.cancelled():
                    job.exception()
            raise failed

    def _read_range(self, chunk: Chunk, skip: int, target: memoryview) -> None:
        if not skip and len(target) == chunk.size:
            self._read(chunk, target)
            return
        if chunk.size > MAX_PARTIAL_CHUNK_BYTES:
            raise CorruptError(
                f"{chunk.shard.key}: chunks of {chunk.size} bytes are too large to read in part"
            )
        content = memoryview(bytearray(chunk.size))
        self._read(chunk, content)
        target[:] = content[skip : skip + len(target)]

    def _read(self, chunk: Chunk, into: memoryview) -> None:
        for copy in self._local_copies:
            if copy.read(chunk.stream, chunk.start, into) and _digest(chunk, into) == chunk.digest:
                self.bytes_by_source.count(copy.name, chunk.size)
                return
        into[:] = read_chunk(self._store, chunk)
        self.bytes_by_source.count("bucket", chunk.size)


def read_chunk(store: ObjectStore, chunk: Chunk) -> bytes:
    """Return one verified chunk from the store that has it: `store` or one beside it.

    Raises CorruptError and store errors: NotFoundError, and StoreDeniedError if the chunk is in a
    store that we may not read.
    """
    with _invalid_keys_as_corrupt():
        data = store_at(store, chunk.shard.store).get_range(
            chunk.shard.key, chunk.offset, chunk.size
        )
    if len(data) != chunk.size:
        has, key = chunk.offset + len(data), chunk.shard.key
        raise CorruptError(f"{key} has {has} bytes instead of {chunk.shard.size}")
    if _digest(chunk, data) != chunk.digest:
        raise CorruptError(f"{chunk.shard.key} has another digest than its manifest says")
    return data


def verify(store: ObjectStore, manifest: Manifest, may_continue: Callable[[], bool]) -> bool:
    """Read the whole checkpoint back from the store; False if `may_continue` stopped it.

    Raises CorruptError, NotFoundError and other store errors.
    """
    for chunk in all_chunks(manifest):
        if not may_continue():
            return False
        read_chunk(store, chunk)
    return True


def read_stream(store: ObjectStore, manifest: Manifest, number: int) -> bytes:
    """Return a whole verified stream from the store. Raises the errors of `verify`."""
    wanted = Range(number, 0, manifest.streams[number].size)
    return b"".join(read_chunk(store, chunk) for chunk in chunks_in(manifest, wanted))


def _digest(chunk: Chunk, data: memoryview | bytes) -> str:
    if chunk.shard.kind == "xxh3":
        import xxhash  # noqa: PLC0415 - the agent has none and reads only sha256

        return xxhash.xxh3_128_hexdigest(data)
    if chunk.shard.kind == "sha256":
        return hashlib.sha256(data).hexdigest()
    raise CorruptError(f"{chunk.shard.key} has a digest of the unknown kind {chunk.shard.kind!r}")


@contextmanager
def _invalid_keys_as_corrupt() -> Iterator[None]:
    """Report a key in HEAD or in a manifest that no store accepts as damage."""
    try:
        yield
    except StoreConfigError as error:
        raise CorruptError(str(error)) from None
