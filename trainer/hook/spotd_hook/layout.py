"""Where the tensors of a snapshot lie in its memory. Needs torch, Python >= 3.10."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ALIGN = 64  # bytes
CHUNK = 16 << 20  # bytes that are copied between two words to the saver, which follows


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
    copy: Callable[[Tensor, Tensor], object] = Tensor.copy_,
) -> None:
    """Copy them into `memory`; `filled` hears how many bytes of it are final."""
    for piece, tensor in zip(layout.pieces, tensors.values(), strict=True):
        start, item = piece["offset"], tensor.element_size()
        source = tensor.reshape(-1)
        target = view(memory, start, piece["dtype"], source.numel())
        step = CHUNK // item
        for at in range(0, source.numel(), step):
            copy(target[at : at + step], source[at : at + step])
            filled(start + min(at + step, source.numel()) * item)


def copier(device: torch.device) -> Callable[[Tensor, Tensor], object]:
    """`copy(target, source)` between contiguous tensors of one type, the target in host memory, for
    a thread beside the one that trains: on one core, without the interpreter's lock; from a GPU in
    a stream of its own, which begins behind all that was begun up to now."""
    if device.type != "cuda":

        def move(target: Tensor, source: Tensor) -> None:
            ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes)

        return move
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))

    def fetch(target: Tensor, source: Tensor) -> None:
        with torch.cuda.stream(stream):
            target.copy_(source)

    return fetch


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
