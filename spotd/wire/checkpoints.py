"""The checkpoint documents in a job's authority store: `HEAD` and the manifests."""

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

VERSION = 2  # of these documents; 1 had a digest for each shard, and no blocks
ELSEWHERE = 3  # of a manifest with shards in other stores than its own, which 2 does not know


def head_key(job_id: str) -> str:
    """Where a job's `HEAD` lies in its authority store."""
    return f"jobs/{job_id}/HEAD"


def manifest_key(job_id: str, generation: int, step: int, nonce: str) -> str:
    """A key that no other save can produce: generation, step and a nonce."""
    return f"jobs/{job_id}/g{generation:08d}/s{step:012d}-{nonce}/MANIFEST.json"


@dataclass(frozen=True)
class HeadRef:
    """A committed checkpoint as HEAD remembers it."""

    generation: int
    step: int
    manifest: str
    digest: str  # sha256 hex of the manifest's bytes


@dataclass(frozen=True)
class Head:
    """The one object that says who may write and where to resume; moved by compare-and-swap only.

    `generation` is the owner. `current` is the newest committed checkpoint (None before the first),
    `previous` its predecessors, newest first, to walk back along when it is torn. `released` means
    that the owner will write nothing more; `final` that the job is done. `nonce` is fresh in every
    version, so that two versions are never the same bytes.
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


def _ref(value: Any) -> HeadRef:
    return HeadRef(
        generation=read_count(value, "generation"),
        step=read_count(value, "step"),
        manifest=read_field(value, "manifest", str),
        digest=read_field(value, "digest", str),
    )


def parse_head(data: bytes) -> Head:
    """Raises WireError."""
    body = read_field(read_object(data), "head", dict)
    current = body.get("current")
    return Head(
        job=read_field(body, "job", str),
        generation=read_count(body, "generation"),
        seq=read_count(body, "seq"),
        nonce=read_field(body, "nonce", str),
        owner=read_field(body, "owner", str),
        current=None if current is None else _ref(current),
        previous=tuple(_ref(item) for item in read_field(body, "previous", list)),
        released=read_field(body, "released", bool),
        final=read_field(body, "final", bool),
    )


@dataclass(frozen=True)
class Shard:
    """One object of raw bytes: the next `size` of its stream. Each of `digests` covers `chunk` of
    them, the last one what is left; `kind` is "xxh3" (xxh3-128, hex) or "sha256". `store` is the
    URL of the store that it lies in, "" for the one that has the manifest."""

    key: str
    size: int
    chunk: int
    digests: tuple[str, ...]
    kind: str = "xxh3"
    store: str = ""


@dataclass(frozen=True)
class Stream:
    """What one rank saved, as one run of bytes that is cut into shards anywhere."""

    shards: tuple[Shard, ...]

    @property
    def size(self) -> int:
        return sum(shard.size for shard in self.shards)


@dataclass(frozen=True)
class Block:
    """A block of a tensor: it begins at index `at` of the whole, has `shape`, and lies row by row
    at byte `offset` of stream number `stream`."""

    at: tuple[int, ...]
    shape: tuple[int, ...]
    stream: int
    offset: int


@dataclass(frozen=True)
class TensorLayout:
    """Where a tensor lies. Its blocks cover all of it; of an unsharded one there is one. `dtype` as
    torch names it, without the "torch."."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Manifest:
    """What one checkpoint is made of; written last, created once, never overwritten.

    `state` is the JSON part (step, data position, hyper-parameters, random policy); tensors are raw
    little-endian bytes in the streams. A manifest without streams is legal: it is how a script
    without our engine ends its job.
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
        """Bytes in all shards."""
        return sum(stream.size for stream in self.streams)

    @property
    def shards(self) -> tuple[Shard, ...]:
        """Of all streams."""
        return tuple(shard for stream in self.streams for shard in stream.shards)

    @property
    def near_size(self) -> int:
        """Bytes that have crossed nothing: in stores of their machines' own regions."""
        return sum(shard.size for shard in self.shards if shard.store)

    @property
    def stores(self) -> tuple[str, ...]:
        """The URLs of the stores beside the manifest's own that have shards of it."""
        return tuple(dict.fromkeys(shard.store for shard in self.shards if shard.store))

    def gathered(self) -> Manifest:
        """The same with all shards in the manifest's own store, where somebody has brought them."""
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
        return encode({"manifest": body, "version": ELSEWHERE if self.stores else VERSION})


def parse_manifest(data: bytes) -> Manifest:
    """Raises WireError. Manifests of version 1 are read as what they would be now."""
    whole = read_object(data)
    body = read_field(whole, "manifest", dict)
    first = whole.get("version") == 1
    streams, tensors = _read_first(body) if first else _read_layout(body)
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
    """Raises WireError."""
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
    found = tuple(read_list(item, name, int))
    if any(number < 0 for number in found):
        raise WireError(f"field {name!r} is {shown(found)}")
    return found


def _read_first(body: Any) -> tuple[tuple[Stream, ...], tuple[TensorLayout, ...]]:
    """Version 1: one stream, a digest for each shard, tensors by shard and by offset in it."""
    shards, starts = [], [0]
    for item in read_field(body, "shards", list):
        kind, _, digest = read_field(item, "digest", str).partition(":")
        size = read_count(item, "size")
        shards.append(Shard(read_field(item, "key", str), size, max(1, size), (digest,), kind))
        starts.append(starts[-1] + size)
    tensors = []
    for item in read_field(body, "tensors", list):
        shape, number = _read_shape(item, "shape"), read_count(item, "shard")
        if number >= len(shards):
            raise WireError(f"field 'shard' is {number}, of {len(shards)}")
        block = Block((0,) * len(shape), shape, 0, starts[number] + read_count(item, "offset"))
        name, dtype = read_field(item, "name", str), read_field(item, "dtype", str)
        tensors.append(TensorLayout(name, dtype, shape, (block,)))
    return ((Stream(tuple(shards)),) if shards else ()), tuple(tensors)


def sha256(data: bytes) -> str:
    """Digest of a manifest as HEAD carries it."""
    return hashlib.sha256(data).hexdigest()
