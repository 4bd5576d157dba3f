"""A checkpoint of two ranks: tensors of one rank, of both, and of several types."""

from __future__ import annotations

from typing import Any

from spotd.wire import Block, TensorLayout
from tests.spotd.cli.saves import Saver

SHAPES: dict[str, tuple[str, tuple[int, ...]]] = {
    "model.rows.weight": ("bfloat16", (40, 30)),  # cut between two ranks along its rows
    "model.columns.weight": ("float32", (30, 40)),  # and along its columns
    "model.scale": ("float32", ()),
    "model.none": ("float16", (0, 3)),
    "model.mask": ("bool", (5,)),
    "adamw.mean.rows.weight": ("float32", (40, 30)),
    "steps": ("int64", (1,)),
}


def make_tensors() -> dict[str, Any]:
    """Return the tensors by name."""
    import torch

    torch.manual_seed(5)
    tensors = {}
    for name, (dtype, shape) in SHAPES.items():
        numbers = torch.randn(shape) * 100
        tensors[name] = (numbers > 0) if dtype == "bool" else numbers.to(getattr(torch, dtype))
    return tensors


def save_sharded(saver: Saver, step: int = 10) -> dict[str, Any]:
    """Save the tensors by two ranks and return them.

    There is a gap before each tensor, and each rank has several shards.
    """
    streams, layouts, tensors = [bytearray(), bytearray()], [], make_tensors()
    for name, tensor in tensors.items():
        axis = {"model.rows.weight": 0, "model.columns.weight": 1}.get(name)
        parts = [tensor] if axis is None else list(tensor.tensor_split(2, axis))
        blocks = []
        for rank, part in enumerate(parts):
            streams[rank] += b"\xff" * (24 + -len(streams[rank]) % 64)
            at = [0] * tensor.dim()
            if axis is not None and rank:
                at[axis] = parts[0].shape[axis]
            blocks.append(Block(tuple(at), tuple(part.shape), rank, len(streams[rank])))
            streams[rank] += tensor_bytes(part)
        layouts.append(TensorLayout(name, SHAPES[name][0], SHAPES[name][1], tuple(blocks)))
    both = [bytes(stream) for stream in streams]
    saver.save_tensors(step, both, layouts, state={"step": step, "config": {"width": 30}})
    return tensors


def tensor_bytes(tensor: Any) -> bytes:
    """Return a tensor's bytes, row by row."""
    import torch

    if not tensor.numel():
        return b""
    return bytes(tensor.contiguous().view(-1).view(torch.uint8).tolist())
