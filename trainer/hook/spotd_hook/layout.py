"""The positions of tensors in the memory of a snapshot. Needs torch, Python >= 3.10."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .tensor_copy import BLOCKING, Part, TensorCopy, parts_of

ALIGN = 64  # bytes


@dataclass(frozen=True)
class Layout:
    """Tensors one after the other at multiples of ALIGN; `size` bytes in all, at least one."""

    pieces: Sequence[Mapping[str, Any]]
    size: int


def lay_out(tensors: Mapping[str, Tensor]) -> Layout:
    """Lay out whole tensors in their order."""
    pieces, end = [], 0
    for name, tensor in tensors.items():
        shape = list(tensor.shape)
        piece = {"name": name, "dtype": str(tensor.dtype).removeprefix("torch."), "shape": shape}
        pieces.append({**piece, "at": [0] * len(shape), "block": shape, "offset": end})
        end += -(-tensor.numel() * tensor.element_size() // ALIGN) * ALIGN
    return Layout(pieces, max(end, 1))


def stage(
    tensors: Mapping[str, Tensor],
    layout: Layout,
    memory: memoryview,
    filled: Callable[[int], None] = lambda _: None,
    tensor_copy: TensorCopy = BLOCKING,
) -> None:
    """Copy tensors into `memory`; `filled` receives the number of final bytes."""

    def parts() -> Iterator[Part]:
        for piece, tensor in zip(layout.pieces, tensors.values(), strict=True):
            source = tensor.reshape(-1)  # copies on the device if not contiguous
            target = tensor_view(memory, piece["offset"], piece["dtype"], source.numel())
            yield from parts_of(target, source, piece["offset"])

    tensor_copy.run(parts(), filled)


def read_tensors(pieces: Sequence[Mapping[str, Any]], memory: memoryview) -> dict[str, Tensor]:
    """Return copies of the tensors in `memory`. Raises ValueError for a dtype that torch lacks."""
    tensors = {}
    for piece in pieces:
        count = 1
        for length in piece["shape"]:
            count *= length
        flat = tensor_view(memory, piece["offset"], piece["dtype"], count)
        tensors[piece["name"]] = flat.clone().reshape(piece["shape"])
    return tensors


def tensor_view(memory: memoryview, start: int, name: str, count: int) -> Tensor:
    """Return a 1-D view of `count` elements of the dtype `name` at byte `start`.

    Raises ValueError for a dtype that torch lacks.
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"torch {torch.__version__} has no tensors of type {name!r}")
    if not count:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=start)
