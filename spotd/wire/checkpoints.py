"""Checkpoint documents in a job's authority store: `HEAD` and the manifests."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from spotd.wire.fields import (
    WireError,
    encode,
    read_count,
    read_field,
    read_list,
    read_object,
    shown,
)

VERSION = 2  # of these documents; version 1 had one digest per shard, and no blocks
MULTI_STORE_VERSION = 3  # of manifests with shards in other stores, which version 2 cannot read


def head_key(job_id: str) -> str:
    """Return the key of a job's `HEAD` in its authority store."""
    return f"jobs/{job_id}/HEAD"


def manifest_key(job_id: str, generation: int, step: int, nonce: str) -> str:
    """Return a manifest's key, which is unique to a save by generation, step and nonce."""
    return f"jobs/{job_id}/g{generation:08d}/s{step:012d}-{nonce}/MANIFEST.json"


@dataclass(frozen=True)
class HeadRef:
    """A reference to a committed checkpoint, as stored in HEAD. `manifest` is its key."""

    generation: int
    step: int
    manifest: str
    digest: str  # sha256 hex of the manifest's bytes


@dataclass(frozen=True)
class Head:
    """The object that decides who may write and where to resume; changed by compare-and-swap only.

    `generation` is the owner. `current` is the newest committed checkpoint (None before the first),
    and `previous` its predecessors, newest first, to fall back to if it is damaged. `released`
    means that the owner writes nothing more, and `final` that the job is done. `nonce` is new in
    every version, so that no two versions have the same bytes.
    """

    job: str
    generation: int
    seq: int
    nonce: str
    owner: str
    current: HeadRef | None = None
    previous: tuple[HeadRef, ...] = ()
    released: bool = False
    final: bool = False

    def to_bytes(self) -> bytes:
        return encode({"head": asdict(self), "version": VERSION})


def _read_ref(value: Any) -> HeadRef:
    return HeadRef(
        generation=read_count(value, "generation"),
        step=read_count(value, "step"),
        manifest=read_field(value, "manifest", str),
        digest=read_field(value, "digest", str),
    )


def parse_head(data: bytes) -> Head:
    """Parse HEAD. Raises WireError."""
    body = read_field(read_object(data), "head", dict)
    current = body.get("current")
    return Head(
        job=read_field(body, "job", str),
        generation=read_count(body, "generation"),
        seq=read_count(body, "seq"),
        nonce=read_field(body, "nonce", str),
        owner=read_field(body, "owner", str),
        current=None if current is None else _read_ref(current),
        previous=tuple(_read_ref(item) for item in read_field(body, "previous", list)),
        released=read_field(body, "released", bool),
        final=read_field(body, "final", bool),
    )


@dataclass(frozen=True)
class Shard:
    """One object with the next `size` bytes of its stream.

    Each of `digests` covers `chunk` bytes, the last one the remainder. `kind` is "xxh3" (xxh3-128,
    hex) or "sha256". `store` is the URL of the store with the shard, "" for the manifest's own.
    """

    key: str
    size: int
    chunk: int
    digests: tuple[str, ...]
    kind: str = "xxh3"
    store: str = ""


@dataclass(frozen=True)
class Stream:
    """The bytes that one rank saved, split into shards at any position."""

    shards: tuple[Shard, ...]

    @property
    def size(self) -> int:
        return sum(shard.size for shard in self.shards)


@dataclass(frozen=True)
class Block:
    """A block of a tensor: it starts at index `at` of the tensor and has shape `shape`.

    Its bytes, in row-major order, start at byte `offset` of stream number `stream`.
    """

    at: tuple[int, ...]
    shape: tuple[int, ...]
    stream: int
    offset: int


@dataclass(frozen=True)
class TensorLayout:
    """A tensor and the blocks that cover it exactly; an unsharded tensor has one block.

    `dtype` is torch's name without "torch.".
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Manifest:
    """The content of one checkpoint; written last, created once, never overwritten.

    `state` is the JSON state (step, data position, hyper-parameters, random policy). Tensors are
    raw little-endian bytes in the streams. A manifest without streams is valid: the agent commits
    one when a script that does not use spotd's engine ends.
    """

    job: str
    generation: int
    step: int
    created_at_us: int
    world_size: int
    streams: tuple[Stream, ...] = ()
    tensors: tuple[TensorLayout, ...] = ()
    state: Mapping[str, Any] = field(default_factory=dict)
    final: bool = False

    @property
    def size(self) -> int:
        """Size of all shards in bytes."""
        return sum(stream.size for stream in self.streams)

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The shards of all streams."""
        return tuple(shard for stream in self.streams for shard in stream.shards)

    @property
    def near_size(self) -> int:
        """Bytes of shards in regional stores, which did not leave their machines' regions."""
        return sum(shard.size for shard in self.shards if shard.store)

    @property
    def stores(self) -> tuple[str, ...]:
        """URLs of the other stores that hold shards of this checkpoint."""
        return tuple(dict.fromkeys(shard.store for shard in self.shards if shard.store))

    def gathered(self) -> Manifest:
        """Return the manifest after all shards were copied to its own store."""
        return replace(
            self,
            streams=tuple(
                Stream(tuple(replace(shard, store="") for shard in stream.shards))
                for stream in self.streams
            ),
        )

    def to_bytes(self) -> bytes:
        body = asdict(self)
        for shard in (shard for stream in body["streams"] for shard in stream["shards"]):
            if not shard["store"]:
                del shard["store"]
        return encode(
            {"manifest": body, "version": MULTI_STORE_VERSION if self.stores else VERSION}
        )


def parse_manifest(data: bytes) -> Manifest:
    """Parse a manifest of version 1, 2 or 3. Raises WireError."""
    document = read_object(data)
    body = read_field(document, "manifest", dict)
    is_v1 = document.get("version") == 1
    streams, tensors = _read_layout_v1(body) if is_v1 else _read_layout(body)
    return Manifest(
        job=read_field(body, "job", str),
        generation=read_count(body, "generation"),
        step=read_count(body, "step"),
        created_at_us=read_count(body, "created_at_us"),
        world_size=read_count(body, "world_size"),
        streams=streams,
        tensors=tensors,
        state=read_field(body, "state", dict),
        final=read_field(body, "final", bool),
    )


def _read_layout(body: Any) -> tuple[tuple[Stream, ...], tuple[TensorLayout, ...]]:
    streams = tuple(read_stream(item) for item in read_field(body, "streams", list))
    tensors = tuple(
        TensorLayout(
            name=read_field(item, "name", str),
            dtype=read_field(item, "dtype", str),
            shape=_read_shape(item, "shape"),
            blocks=tuple(_read_block(block) for block in read_field(item, "blocks", list)),
        )
        for item in read_field(body, "tensors", list)
    )
    return streams, tensors


def read_stream(item: Any) -> Stream:
    """Parse one stream of a manifest. Raises WireError."""
    return Stream(tuple(_read_shard(shard) for shard in read_field(item, "shards", list)))


def _read_shard(item: Any) -> Shard:
    shard = Shard(
        key=read_field(item, "key", str),
        size=read_count(item, "size"),
        chunk=read_count(item, "chunk"),
        digests=tuple(read_list(item, "digests", str)),
        kind=read_field(item, "kind", str),
        store=read_field(item, "store", str) if "store" in item else "",
    )
    if not shard.chunk or -(-shard.size // shard.chunk) != len(shard.digests):
        raise WireError(f"{shown(shard.key)} has {len(shard.digests)} digests for its bytes")
    return shard


def _read_block(item: Any) -> Block:
    return Block(
        at=_read_shape(item, "at"),
        shape=_read_shape(item, "shape"),
        stream=read_count(item, "stream"),
        offset=read_count(item, "offset"),
    )


def _read_shape(item: Any, name: str) -> tuple[int, ...]:
    shape = tuple(read_list(item, name, int))
    if any(number < 0 for number in shape):
        raise WireError(f"field {name!r} is {shown(shape)}")
    return shape


def _read_layout_v1(body: Any) -> tuple[tuple[Stream, ...], tuple[TensorLayout, ...]]:
    """Read version 1: one stream, one digest per shard, tensors by shard and offset in it."""
    shards, starts = [], [0]
    for item in read_field(body, "shards", list):
        kind, _, digest = read_field(item, "digest", str).partition(":")
        size = read_count(item, "size")
        shards.append(Shard(read_field(item, "key", str), size, max(1, size), (digest,), kind))
        starts.append(starts[-1] + size)
    tensors = []
    for item in read_field(body, "tensors", list):
        shape, shard_index = _read_shape(item, "shape"), read_count(item, "shard")
        if shard_index >= len(shards):
            raise WireError(f"field 'shard' is {shard_index}, of {len(shards)}")
        block = Block((0,) * len(shape), shape, 0, starts[shard_index] + read_count(item, "offset"))
        name, dtype = read_field(item, "name", str), read_field(item, "dtype", str)
        tensors.append(TensorLayout(name, dtype, shape, (block,)))
    return ((Stream(tuple(shards)),) if shards else ()), tuple(tensors)


def sha256(data: bytes) -> str:
    """Return the digest of a manifest, as stored in HEAD."""
    return hashlib.sha256(data).hexdigest()
