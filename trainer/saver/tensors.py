"""Tensors as a manifest has them: blocks of bytes, row by row, in streams."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from math import prod

from spotd.wire import TensorLayout
from trainer.saver.reader import CorruptError


def itemsize(dtype: str) -> int:
    """Bytes of an element, by the name that torch gives its type: float32, bfloat16, bool.
    Raises CorruptError for a name that says no size."""
    bits = re.search(r"\d+", dtype)
    if dtype == "bool":
        return 1
    if bits is None or not int(bits[0]) or int(bits[0]) % 8:
        raise CorruptError(f"{dtype!r} is no type of tensors that is known here")
    return int(bits[0]) // 8


def assemble(tensor: TensorLayout, streams: Sequence[bytes]) -> bytearray:
    """All of a tensor's bytes, row by row. Raises CorruptError where its blocks do not fit."""
    item, found = itemsize(tensor.dtype), []
    for block in tensor.blocks:
        size = prod(block.shape) * item
        stream = streams[block.stream] if block.stream < len(streams) else b""
        data = memoryview(stream)[block.offset : block.offset + size]
        fits = len(block.at) == len(block.shape) == len(tensor.shape) and all(
            a + b <= s for a, b, s in zip(block.at, block.shape, tensor.shape, strict=True)
        )
        if len(data) != size or not fits:
            raise CorruptError(f"a block of {tensor.name} is not where its manifest says")
        found.append((data, block))
    if sum(len(data) for data, _ in found) != prod(tensor.shape) * item:
        raise CorruptError(f"the blocks of {tensor.name} are not all of it")
    whole = bytearray(prod(tensor.shape) * item)
    for data, block in found:
        _place(data, block.at, block.shape, memoryview(whole), tensor.shape, item)
    return whole


def _place(
    data: memoryview,
    at: Sequence[int],
    block: Sequence[int],
    whole: memoryview,
    shape: Sequence[int],
    item: int,
) -> None:
    """Row after row; one run of bytes where the block has whole rows, or the tensor is a number."""
    if not data:
        return
    if not shape or tuple(block[1:]) == tuple(shape[1:]):
        start = (at[0] * prod(shape[1:]) if shape else 0) * item
        whole[start : start + len(data)] = data
        return
    run = block[-1] * item
    for number, index in enumerate(product(*(range(size) for size in block[:-1]))):
        position = 0
        for a, i, size in zip(at, (*index, 0), shape, strict=True):
            position = position * size + a + i
        whole[position * item : position * item + run] = data[number * run : (number + 1) * run]
