"""Save the shards of DTensors (FSDP2) by the ranks that have them, and load them on any number.

The planners of torch.distributed.checkpoint (DCP) determine which rank saves and loads which shard.
Needs torch, Python >= 3.10.
"""

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
from .layout import ALIGN, Layout, tensor_view
from .saver_client import SaverError

GAP = 4096  # bytes read in vain to merge two ranges


def lay_out_shards(tensors: Mapping[str, Tensor]) -> tuple[Layout, dict[str, Tensor]]:
    """Return the layout of this rank's shards, and the shards themselves without a copy.

    Empty shards are left out. A tensor that is not sharded is saved by the first rank that has it.
    """
    plan = create_default_local_save_plan(dict(tensors), is_coordinator=False)
    pieces, shards, end = [], dict[str, Tensor](), 0
    for item in plan.items:
        name, block_data = item.index.fqn, item.tensor_data
        assert block_data is not None  # noqa: S101 - there are only tensors
        if not math.prod(block_data.chunk.sizes):
            continue
        local: Any = tensors[name]
        if type(local).__name__ == "DTensor":
            local = local.to_local()
        shards[name] = local.detach()
        pieces.append(
            {
                "name": name,
                "dtype": str(local.dtype).removeprefix("torch."),
                "shape": list(block_data.size),
                "at": list(block_data.chunk.offsets),
                "block": list(block_data.chunk.sizes),
                "offset": end,
            }
        )
        end += -(-local.nbytes // ALIGN) * ALIGN
    return Layout(pieces, max(end, 1)), shards


@dataclass
class _Span:
    """A range of bytes of a stream, and its wanted parts: (item, first byte, row shape)."""

    stream: int
    start: int
    end: int
    wanted: list[tuple[ReadItem, int, tuple[int, ...]]] = field(default_factory=list)


def load_shards(
    checkpointer: Checkpointer, checkpoint: FoundCheckpoint, tensors: Mapping[str, Tensor]
) -> None:
    """Load this rank's shards of `tensors` from a checkpoint, however it was sharded.

    Raises CorruptError for damage, and SaverError if it holds other tensors.
    """
    # Empty tensors are not saved.
    tensors = {name: tensor for name, tensor in tensors.items() if tensor.numel()}
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    check_same_tensors(checkpoint, tensors)
    planner.set_up_planner(dict(tensors), _metadata(checkpoint), is_coordinator=False)
    plan = planner.create_local_plan()
    capacity = checkpointer.size
    for spans in _batches(_spans(checkpoint, plan.items, capacity), capacity):
        memory = checkpointer.fetch(
            [(span.stream, span.start, span.end - span.start) for span in spans]
        )
        at = 0
        for span in spans:
            for item, start, shape in span.wanted:
                target = planner.resolve_tensor(item).detach()
                dtype = str(target.dtype).removeprefix("torch.")
                flat = tensor_view(memory, at + start - span.start, dtype, math.prod(shape))
                target.copy_(_narrow_rows(flat.view(shape), item))
                planner.commit_tensor(item, target)
            at += span.end - span.start


def check_same_tensors(checkpoint: FoundCheckpoint, tensors: Mapping[str, Tensor]) -> None:
    """Raise SaverError, naming the first differences, unless the checkpoint has these tensors."""
    saved = {
        tensor["name"]: f"{tensor['dtype']} {list(tensor['shape'])}"
        for tensor in checkpoint.tensors
    }
    current = {
        name: f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        for name, tensor in tensors.items()
    }
    if current == saved:
        return
    names = [name for name in {**current, **saved} if current.get(name) != saved.get(name)]
    differences = [
        f"{name}: {saved.get(name, 'none')}, here {current.get(name, 'none')}" for name in names
    ]
    text = f"the checkpoint of step {checkpoint.step} holds other tensors than this model has"
    raise SaverError("MismatchError", f"{text} ({'; '.join(differences[:3])})")


def _metadata(checkpoint: FoundCheckpoint) -> Metadata:
    """Return the checkpoint's metadata in DCP's format."""
    return Metadata(
        {
            tensor["name"]: TensorStorageMetadata(
                TensorProperties(dtype=getattr(torch, tensor["dtype"])),
                torch.Size(tensor["shape"]),
                [
                    ChunkStorageMetadata(torch.Size(block["at"]), torch.Size(block["shape"]))
                    for block in tensor["blocks"]
                ],
            )
            for tensor in checkpoint.tensors
        }
    )


def _spans(checkpoint: FoundCheckpoint, items: list[ReadItem], capacity: int) -> Iterator[_Span]:
    """Yield ranges to read, merging neighbours, none longer than `capacity` bytes.

    Raises SaverError.
    """
    blocks = {
        (tensor["name"], tuple(block["at"])): (getattr(torch, tensor["dtype"]).itemsize, block)
        for tensor in checkpoint.tensors
        for block in tensor["blocks"]
    }
    wanted = []
    for item in items:
        offset: Any = item.storage_index.offset  # always set for blocks
        width, block = blocks[item.storage_index.fqn, tuple(offset)]
        shape = tuple(block["shape"])
        if shape:
            shape = (item.lengths[0], *shape[1:])
        row = width * math.prod(shape[1:])
        start = block["offset"] + (item.storage_offsets[0] * row if shape else 0)
        wanted.append((block["stream"], start, start + width * math.prod(shape), item, shape))
    span: _Span | None = None
    for stream, start, end, item, shape in sorted(wanted, key=lambda span: span[:2]):
        if end - start > capacity:
            name = item.storage_index.fqn
            text = f"{name} is divided in another dimension than it was saved in"
            raise SaverError("MismatchError", f"{text}: shard it as before, or start a new job")
        joins = span is not None and span.stream == stream and start - span.end <= GAP
        if span is None or not joins or end - span.start > capacity:
            if span is not None:
                yield span
            span = _Span(stream, start, end)
        span.end = max(span.end, end)
        span.wanted.append((item, start, shape))
    if span is not None:
        yield span


def _batches(spans: Iterator[_Span], capacity: int) -> Iterator[list[_Span]]:
    """Group as many spans as fit into the memory."""
    batch: list[_Span] = []
    used = 0
    for span in spans:
        if batch and used + span.end - span.start > capacity:
            yield batch
            batch, used = [], 0
        batch.append(span)
        used += span.end - span.start
    if batch:
        yield batch


def _narrow_rows(rows: Tensor, item: ReadItem) -> Tensor:
    """Return the wanted part of whole rows of a block."""
    for dim in range(1, rows.dim()):
        rows = rows.narrow(dim, item.storage_offsets[dim], item.lengths[dim])
    return rows
