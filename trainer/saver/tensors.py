"""Assemble whole tensors from the blocks of bytes that a manifest describes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from math import prod

from spotd.wire import TensorLayout
from trainer.saver.reader import CorruptError


def itemsize(dtype: str) -> int:
    """Return the bytes per element of a dtype named as in torch: float32, bfloat16, bool.

    Raises CorruptError for a name without a size.
    """
    bits = re.search(r"\d+", dtype)
    if dtype == "bool":
        return 1
    if bits is None or not int(bits[0]) or int(bits[0]) % 8:
        raise CorruptError(f"{dtype!r} is not a type of tensors that is known here")
    return int(bits[0]) // 8


def assemble(tensor: TensorLayout, streams: Sequence[bytes]) -> bytearray:
    """Return a tensor's bytes in row-major order. Raises CorruptError if its blocks do not fit."""
    item, blocks = itemsize(tensor.dtype), []
    for block in tensor.blocks:
        size = prod(block.shape) * item
        stream = streams[block.stream] if block.stream < len(streams) else b""
        data = memoryview(stream)[block.offset : block.offset + size]
        fits = len(block.at) == len(block.shape) == len(tensor.shape) and all(
            a + b <= s for a, b, s in zip(block.at, block.shape, tensor.shape, strict=True)
        )
        if len(data) != size or not fits:
            raise CorruptError(f"a block of {tensor.name} is not where its manifest says")
        blocks.append((data, block))
    if sum(len(data) for data, _ in blocks) != prod(tensor.shape) * item:
        raise CorruptError(f"the blocks of {tensor.name} are not all of it")
    content = bytearray(prod(tensor.shape) * item)
    for data, block in blocks:
        _copy_block(data, block.at, block.shape, memoryview(content), tensor.shape, item)
    return content


def _copy_block(
    data: memoryview,
    at: Sequence[int],
    block: Sequence[int],
    content: memoryview,
    shape: Sequence[int],
    item: int,
) -> None:
    """Copy row by row; in one piece if the block has whole rows or the tensor is a scalar."""
    if not data:
        return
    if not shape or tuple(block[1:]) == tuple(shape[1:]):
        start = (at[0] * prod(shape[1:]) if shape else 0) * item
        content[start : start + len(data)] = data
        return
    run = block[-1] * item
    for number, index in enumerate(product(*(range(size) for size in block[:-1]))):
        position = 0
        for a, i, size in zip(at, (*index, 0), shape, strict=True):
            position = position * size + a + i
        content[position * item : position * item + run] = data[number * run : (number + 1) * run]
