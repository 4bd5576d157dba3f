"""The checkpoint documents in a job's authority store: `HEAD` and the manifests."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from spotd.wire.fields import encode, read_count, read_field, read_list, read_object

VERSION = 1  # of these documents


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
    """One object of raw bytes. `digest` is xxh3-128 hex, prefixed "xxh3:"; or "sha256:"."""

    key: str
    size: int
    digest: str


@dataclass(frozen=True)
class TensorLayout:
    """Where one tensor lies: bytes `[offset, offset + nbytes)` of shard number `shard`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    shard: int
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Manifest:
    """What one checkpoint is made of; written last, created once, never overwritten.

    `state` is the JSON part (step, data position, hyper-parameters, random policy); tensors are raw
    little-endian bytes in the shards. A manifest without shards is legal: it is how a script
    without our engine ends its job.
    """

    job: str
    generation: int
    step: int
    created_at_us: int
    world_size: int
    shards: tuple[Shard, ...] = ()
    tensors: tuple[TensorLayout, ...] = ()
    state: Mapping[str, Any] = field(default_factory=dict)
    final: bool = False

    def to_bytes(self) -> bytes:
        return encode({"manifest": asdict(self), "version": VERSION})


def parse_manifest(data: bytes) -> Manifest:
    """Raises WireError."""
    body = read_field(read_object(data), "manifest", dict)
    shards = tuple(
        Shard(
            read_field(item, "key", str),
            read_count(item, "size"),
            read_field(item, "digest", str),
        )
        for item in read_field(body, "shards", list)
    )
    tensors = tuple(
        TensorLayout(
            name=read_field(item, "name", str),
            dtype=read_field(item, "dtype", str),
            shape=tuple(read_list(item, "shape", int)),
            shard=read_count(item, "shard"),
            offset=read_count(item, "offset"),
            nbytes=read_count(item, "nbytes"),
        )
        for item in read_field(body, "tensors", list)
    )
    return Manifest(
        job=read_field(body, "job", str),
        generation=read_count(body, "generation"),
        step=read_count(body, "step"),
        created_at_us=read_count(body, "created_at_us"),
        world_size=read_count(body, "world_size"),
        shards=shards,
        tensors=tensors,
        state=read_field(body, "state", dict),
        final=read_field(body, "final", bool),
    )


def sha256(data: bytes) -> str:
    """Digest of a manifest as HEAD carries it."""
    return hashlib.sha256(data).hexdigest()
