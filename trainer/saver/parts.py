"""The description of one rank's share of a snapshot, and the manifest made of all ranks' shares.

A part lies on the local disk beside its bytes. Ranks on other machines than rank 0's also put it
into the store, where rank 0's saver collects it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from spotd.wire import (
    Block,
    Manifest,
    Stream,
    TensorLayout,
    WireError,
    encode,
    read_count,
    read_field,
    read_list,
    read_object,
    read_stream,
)


@dataclass(frozen=True)
class TensorPiece:
    """One rank's block of a tensor, at byte `offset` of the rank's snapshot."""

    name: str
    dtype: str
    shape: tuple[int, ...]  # of the whole tensor
    at: tuple[int, ...]
    block: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class RankPart:
    """One rank's share of a snapshot. `state` is the JSON part; only rank 0 has it."""

    folder: str
    generation: int
    step: int
    rank: int
    world_size: int
    created_at_us: int
    stream: Stream
    pieces: tuple[TensorPiece, ...] = ()
    state: Mapping[str, Any] = field(default_factory=dict)
    trigger: str = ""
    released: bool = False
    final: bool = False

    def to_bytes(self) -> bytes:
        return encode({"part": asdict(self), "version": 1})


def part_key(folder: str, rank: int) -> str:
    """Return the store key of the part of a rank on another machine."""
    return f"{folder}/part-{rank:05d}"


def parse_part(data: bytes) -> RankPart:
    """Raises WireError."""
    body = read_field(read_object(data), "part", dict)
    return RankPart(
        folder=read_field(body, "folder", str),
        generation=read_count(body, "generation"),
        step=read_count(body, "step"),
        rank=read_count(body, "rank"),
        world_size=read_count(body, "world_size"),
        created_at_us=read_count(body, "created_at_us"),
        stream=read_stream(read_field(body, "stream", dict)),
        pieces=tuple(read_piece(item) for item in read_field(body, "pieces", list)),
        state=read_field(body, "state", dict),
        trigger=read_field(body, "trigger", str),
        released=read_field(body, "released", bool),
        final=read_field(body, "final", bool),
    )


def read_piece(item: Any) -> TensorPiece:
    """Raises WireError."""
    shape, at, block = (tuple(read_list(item, name, int)) for name in ("shape", "at", "block"))
    inside = all(
        a >= 0 and b >= 0 and a + b <= s for a, b, s in zip(at, block, shape, strict=False)
    )
    if not len(shape) == len(at) == len(block) or not inside:
        raise WireError(f"block {block} at {at} is not in a tensor of shape {shape}")
    return TensorPiece(
        read_field(item, "name", str),
        read_field(item, "dtype", str),
        shape,
        at,
        block,
        read_count(item, "offset"),
    )


def manifest_of(job: str, parts: Sequence[RankPart]) -> Manifest:
    """Return the manifest of all ranks' parts, given in rank order.

    A block that several ranks hold is taken from the first of them. Raises WireError if the parts
    do not belong together.
    """
    first = parts[0]
    identities = {(part.folder, part.step, part.world_size) for part in parts}
    if len(identities) != 1 or [part.rank for part in parts] != list(range(first.world_size)):
        raise WireError(f"the parts of {first.folder} are not of one snapshot")
    return Manifest(
        job=job,
        generation=first.generation,
        step=first.step,
        created_at_us=first.created_at_us,
        world_size=first.world_size,
        streams=tuple(part.stream for part in parts),
        tensors=_tensors(parts),
        state=first.state,
        final=first.final,
    )


def _tensors(parts: Iterable[RankPart]) -> tuple[TensorLayout, ...]:
    tensors: dict[str, tuple[str, tuple[int, ...], dict[tuple[int, ...], Block]]] = {}
    for part in parts:
        for piece in part.pieces:
            dtype, shape, blocks = tensors.setdefault(piece.name, (piece.dtype, piece.shape, {}))
            if (dtype, shape) != (piece.dtype, piece.shape):
                raise WireError(f"tensor {piece.name!r} is not the same on all ranks")
            block = Block(piece.at, piece.block, part.rank, piece.offset)
            blocks.setdefault(piece.at, block)
    return tuple(
        TensorLayout(name, dtype, shape, tuple(blocks.values()))
        for name, (dtype, shape, blocks) in tensors.items()
    )
