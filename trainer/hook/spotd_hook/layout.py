"""Where the tensors of a snapshot lie in its memory. Needs torch, Python >= 3.10."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .tensor_copy import STANDING, Part, TensorCopy, parts_of

ALIGN = 64  # bytes


@dataclass(frozen=True)
class Layout:
    """One behind the other, each at a multiple of ALIGN; `size` bytes in all, at least one."""

    pieces: Sequence[Mapping[str, Any]]
    size: int


def lay_out(tensors: Mapping[str, Tensor]) -> Layout:
    """Of whole tensors, in their order."""
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
    copying: TensorCopy = STANDING,
) -> None:
    """Copy them into `memory`; `filled` hears how many bytes of it are final."""

    def parts() -> Iterator[Part]:
        for piece, tensor in zip(layout.pieces, tensors.values(), strict=True):
            source = tensor.reshape(-1)  # a copy on its device, where the tensor is not contiguous
            target = view(memory, piece["offset"], piece["dtype"], source.numel())
            yield from parts_of(target, source, piece["offset"])

    copying.run(parts(), filled)


def read(pieces: Sequence[Mapping[str, Any]], memory: memoryview) -> dict[str, Tensor]:
    """Copies of the tensors that lie in `memory`. Raises ValueError for a type that torch lacks."""
    found = {}
    for piece in pieces:
        count = 1
        for length in piece["shape"]:
            count *= length
        flat = view(memory, piece["offset"], piece["dtype"], count)
        found[piece["name"]] = flat.clone().reshape(piece["shape"])
    return found


def view(memory: memoryview, start: int, name: str, count: int) -> Tensor:
    """`count` elements of the type that torch calls `name`, where they lie, 1-D. Raises ValueError
    for a type that torch lacks."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"torch {torch.__version__} has no tensors of type {name!r}")
    if not count:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=start)
