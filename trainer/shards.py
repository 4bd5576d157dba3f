"""From named tensors to objects of raw bytes and back, each byte covered by a digest.

Knows no torch: a snapshot is one piece of memory (the arena), a layout says what lies where.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import xxhash

from providers.stores.base import ObjectStore, StoreConfigError
from spotd.wire import HeadRef, Manifest, Shard, TensorLayout, WireError, parse_manifest, sha256

SHARD_BYTES = 128 << 20
READ_BYTES = 16 << 20
IN_FLIGHT = 4

T = TypeVar("T")


class CorruptError(Exception):
    """A checkpoint's bytes are not what its manifest says; the text says which."""


@dataclass(frozen=True)
class Piece:
    """One tensor's place in the arena, in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


@dataclass(frozen=True)
class Layout:
    """How an arena of `size` bytes is cut into shards [start, end), and where each tensor lies."""

    size: int
    cuts: tuple[tuple[int, int], ...]
    tensors: tuple[TensorLayout, ...]

    @staticmethod
    def of(pieces: Iterable[Piece], shard_bytes: int = SHARD_BYTES) -> Layout:
        """Shards of at most `shard_bytes` where tensors allow; they are never split."""
        ordered = sorted(pieces, key=lambda piece: piece.start)
        starts, tensors = [0], []
        for piece in ordered:
            if piece.start + piece.nbytes - starts[-1] > shard_bytes and piece.start > starts[-1]:
                starts.append(piece.start)
            tensors.append(
                TensorLayout(
                    name=piece.name,
                    dtype=piece.dtype,
                    shape=piece.shape,
                    shard=len(starts) - 1,
                    offset=piece.start - starts[-1],
                    nbytes=piece.nbytes,
                )
            )
        size = -(-(ordered[-1].start + ordered[-1].nbytes) // 64) * 64
        return Layout(size, tuple(zip(starts, [*starts[1:], size], strict=True)), tuple(tensors))


def write_shards(
    store: ObjectStore, folder: str, arena: memoryview, layout: Layout
) -> tuple[Shard, ...]:
    """Hash and put every shard, a few at a time. Raises StoreError."""

    def write(number: int) -> Shard:
        start, end = layout.cuts[number]
        view = arena[start:end]
        key = f"{folder}/shard-{number:05d}"
        digest = "xxh3:" + xxhash.xxh3_128_hexdigest(view)
        store.put(key, view)
        return Shard(key, end - start, digest)

    return _side_by_side(write, len(layout.cuts))


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


def read_shards(store: ObjectStore, manifest: Manifest, arena: memoryview, layout: Layout) -> None:
    """Fill the arena, every byte verified. Raises CorruptError and store errors.

    The manifest must have our layout: ValueError otherwise.
    """
    sizes = tuple(end - start for start, end in layout.cuts)
    if manifest.tensors != layout.tensors or tuple(s.size for s in manifest.shards) != sizes:
        raise ValueError("the checkpoint holds other tensors than this model has")

    def read(number: int) -> None:
        start, end = layout.cuts[number]
        arena[start:end] = read_shard(store, manifest.shards[number])

    _side_by_side(read, len(layout.cuts))


def read_shard(store: ObjectStore, shard: Shard) -> bytes:
    """One shard, verified. Raises CorruptError and store errors."""
    with _named():
        data = store.get(shard.key)[0]
    check = _hasher(shard)
    check.update(data)
    _check(shard, len(data), check.hexdigest())
    return data


def verify_shard(store: ObjectStore, shard: Shard, go_on: Callable[[], bool]) -> bool:
    """Read back piece by piece; False if `go_on` said no half-way. Raises as `read_shard`."""
    check, size = _hasher(shard), 0
    while go_on():
        with _named():
            data = store.get_range(shard.key, size, READ_BYTES)
        check.update(data)
        size += len(data)
        if len(data) < READ_BYTES:
            _check(shard, size, check.hexdigest())
            return True
    return False


@contextmanager
def _named() -> Iterator[None]:
    """Of what HEAD or a manifest names: a name that no store takes is damage."""
    try:
        yield
    except StoreConfigError as error:
        raise CorruptError(str(error)) from None


def _hasher(shard: Shard) -> hashlib._Hash | xxhash.xxh3_128:
    name = shard.digest.partition(":")[0]
    if name == "xxh3":
        return xxhash.xxh3_128()
    if name == "sha256":
        return hashlib.sha256()
    raise CorruptError(f"{shard.key} has a digest of the unknown kind {name!r}")


def _check(shard: Shard, size: int, digest: str) -> None:
    if size != shard.size:
        raise CorruptError(f"{shard.key} has {size} bytes instead of {shard.size}")
    if digest != shard.digest.partition(":")[2]:
        raise CorruptError(f"{shard.key} has another digest than its manifest says")


def _side_by_side(work: Callable[[int], T], count: int) -> tuple[T, ...]:
    if count == 1:
        return (work(0),)
    with ThreadPoolExecutor(min(IN_FLIGHT, count)) as pool:
        return tuple(pool.map(work, range(count)))
