"""Shards of tensors (DTensor, as of FSDP2), each saved by the rank that has it, and read by however
many ranks there are: DCP's planners say which rank has what, and what of it lies where. Needs
torch, Python >= 3.10."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    create_default_local_save_plan,
)
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem

from .checkpointer import Checkpointer
from .engine import FoundCheckpoint
from .layout import ALIGN, Layout, view
from .saver_client import SaverError

GAP = 4096  # bytes that are read and not wanted, so that two ranges are one


def lay_out_shards(tensors: Mapping[str, Tensor]) -> tuple[Layout, dict[str, Tensor]]:
    """Where this rank's shards lie in its snapshot, and the shards themselves, without a copy; ones
    that are empty are left out. Tensors that are not sharded are saved by the first rank of those
    that have them."""
    plan = create_default_local_save_plan(dict(tensors), is_coordinator=False)
    pieces, shards, end = [], dict[str, Tensor](), 0
    for item in plan.items:
        name, about = item.index.fqn, item.tensor_data
        assert about is not None  # noqa: S101 - tensors alone were given
        if not math.prod(about.chunk.sizes):
            continue
        local: Any = tensors[name]
        if type(local).__name__ == "DTensor":
            local = local.to_local()
        shards[name] = local.detach()
        pieces.append(
            {
                "name": name,
                "dtype": str(local.dtype).removeprefix("torch."),
                "shape": list(about.size),
                "at": list(about.chunk.offsets),
                "block": list(about.chunk.sizes),
                "offset": end,
            }
        )
        end += -(-local.nbytes // ALIGN) * ALIGN
    return Layout(pieces, max(end, 1)), shards


@dataclass
class _Span:
    """Bytes of a stream, and what of them is wanted: (item, first byte, shape of its rows)."""

    stream: int
    start: int
    end: int
    wanted: list[tuple[ReadItem, int, tuple[int, ...]]] = field(default_factory=list)


def load_shards(
    checkpointer: Checkpointer, found: FoundCheckpoint, tensors: Mapping[str, Tensor]
) -> None:
    """Have this rank's shards of `tensors` be as in the checkpoint, whoever saved them in whatever
    shards. Raises CorruptError for damage, and SaverError where it holds other tensors."""
    tensors = {name: one for name, one in tensors.items() if one.numel()}  # as they were saved
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    check_same(found, tensors)
    planner.set_up_planner(dict(tensors), _metadata(found), is_coordinator=False)
    plan = planner.create_local_plan()
    room = checkpointer.size
    for spans in _batches(_spans(found, plan.items, room), room):
        memory = checkpointer.fetch([(one.stream, one.start, one.end - one.start) for one in spans])
        at = 0
        for one in spans:
            for item, start, shape in one.wanted:
                target = planner.resolve_tensor(item).detach()
                dtype = str(target.dtype).removeprefix("torch.")
                flat = view(memory, at + start - one.start, dtype, math.prod(shape))
                target.copy_(_cut(flat.view(shape), item))
                planner.commit_tensor(item, target)
            at += one.end - one.start


def check_same(found: FoundCheckpoint, tensors: Mapping[str, Tensor]) -> None:
    """Raises SaverError, which names the first that differ, unless these are its tensors."""
    theirs = {one["name"]: f"{one['dtype']} {list(one['shape'])}" for one in found.tensors}
    ours = {
        name: f"{str(one.dtype).removeprefix('torch.')} {list(one.shape)}"
        for name, one in tensors.items()
    }
    if ours == theirs:
        return
    names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    said = [f"{name}: {theirs.get(name, 'none')}, here {ours.get(name, 'none')}" for name in names]
    text = f"the checkpoint of step {found.step} holds other tensors than this model has"
    raise SaverError("MismatchError", f"{text} ({'; '.join(said[:3])})")


def _metadata(found: FoundCheckpoint) -> Metadata:
    """The checkpoint in DCP's words."""
    return Metadata(
        {
            one["name"]: TensorStorageMetadata(
                TensorProperties(dtype=getattr(torch, one["dtype"])),
                torch.Size(one["shape"]),
                [
                    ChunkStorageMetadata(torch.Size(block["at"]), torch.Size(block["shape"]))
                    for block in one["blocks"]
                ],
            )
            for one in found.tensors
        }
    )


def _spans(found: FoundCheckpoint, items: list[ReadItem], room: int) -> Iterator[_Span]:
    """What is to be read, neighbours together, none longer than `room` bytes. Raises SaverError."""
    blocks = {
        (one["name"], tuple(block["at"])): (getattr(torch, one["dtype"]).itemsize, block)
        for one in found.tensors
        for block in one["blocks"]
    }
    wanted = []
    for item in items:
        offset: Any = item.storage_index.offset  # of a block, always there
        width, block = blocks[item.storage_index.fqn, tuple(offset)]
        shape = tuple(block["shape"])
        if shape:
            shape = (item.lengths[0], *shape[1:])
        row = width * math.prod(shape[1:])
        start = block["offset"] + (item.storage_offsets[0] * row if shape else 0)
        wanted.append((block["stream"], start, start + width * math.prod(shape), item, shape))
    span: _Span | None = None
    for stream, start, end, item, shape in sorted(wanted, key=lambda one: one[:2]):
        if end - start > room:
            name = item.storage_index.fqn
            text = f"{name} is divided in another dimension than it was saved in"
            raise SaverError("MismatchError", f"{text}: shard it as before, or start a new job")
        joins = span is not None and span.stream == stream and start - span.end <= GAP
        if span is None or not joins or end - span.start > room:
            if span is not None:
                yield span
            span = _Span(stream, start, end)
        span.end = max(span.end, end)
        span.wanted.append((item, start, shape))
    if span is not None:
        yield span


def _batches(spans: Iterator[_Span], room: int) -> Iterator[list[_Span]]:
    """As many at once as fit into the memory."""
    batch: list[_Span] = []
    used = 0
    for one in spans:
        if batch and used + one.end - one.start > room:
            yield batch
            batch, used = [], 0
        batch.append(one)
        used += one.end - one.start
    if batch:
        yield batch


def _cut(rows: Tensor, item: ReadItem) -> Tensor:
    """Of whole rows of a block, what is wanted."""
    for dim in range(1, rows.dim()):
        rows = rows.narrow(dim, item.storage_offsets[dim], item.lengths[dim])
    return rows
