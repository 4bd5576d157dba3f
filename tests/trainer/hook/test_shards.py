"""Loading a checkpoint on ranks with another division of the tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from trainer.hook.spotd_hook.checkpointer import Checkpointer
from trainer.hook.spotd_hook.engine import FoundCheckpoint
from trainer.hook.spotd_hook.saver_client import SaverError
from trainer.hook.spotd_hook.shards import lay_out_shards, load_shards

WHOLE = torch.arange(24, dtype=torch.float32).reshape(4, 6)
SCALAR = torch.tensor(7.0)


class Streams:
    """Replaces a checkpointer: byte streams, and memory for `size` bytes at once."""

    def __init__(self, streams: Sequence[bytes], size: int) -> None:
        self.streams, self.size = streams, size
        self.fetched: list[int] = []

    def fetch(self, ranges: Sequence[tuple[int, int, int]]) -> memoryview:
        total = b"".join(self.streams[at][start : start + size] for at, start, size in ranges)
        assert len(total) <= self.size
        self.fetched.append(len(total))
        return memoryview(bytearray(total))


def block(at: Sequence[int], part: Tensor, stream: int, offset: int) -> dict[str, Any]:
    return {"at": list(at), "shape": list(part.shape), "stream": stream, "offset": offset}


def found_of(
    divided: Sequence[tuple[tuple[int, int], Tensor]],
) -> tuple[FoundCheckpoint, list[bytes]]:
    """Return `w` in these blocks, one per stream, preceded by a scalar in the first stream."""
    streams, blocks = [], []
    for number, (at, part) in enumerate(divided):
        scalar_bytes = bytes(SCALAR.numpy().tobytes()).ljust(64, b"?") if not number else b""
        blocks.append(block(at, part, number, len(scalar_bytes)))
        streams.append(scalar_bytes + part.contiguous().numpy().tobytes())
    tensors = [
        {"name": "w", "dtype": "float32", "shape": [4, 6], "blocks": blocks},
        {"name": "n", "dtype": "float32", "shape": [], "blocks": [block((), SCALAR, 0, 0)]},
    ]
    return FoundCheckpoint({"step": 3}, {}, tensors, [len(stream) for stream in streams]), streams


def load(
    found: FoundCheckpoint, streams: Sequence[bytes], into: Mapping[str, Tensor], capacity: int
) -> Streams:
    fake = Streams(streams, capacity)
    load_shards(cast("Checkpointer", fake), found, into)
    return fake


def empty() -> dict[str, Tensor]:
    return {"w": torch.zeros(4, 6), "n": torch.zeros(())}


ROWS = [((0, 0), WHOLE[:3]), ((3, 0), WHOLE[3:])]
COLUMNS = [((0, 0), WHOLE[:, :4]), ((0, 4), WHOLE[:, 4:])]


@pytest.mark.parametrize("divided", [[((0, 0), WHOLE)], ROWS, COLUMNS])
@pytest.mark.parametrize("capacity", [96, 1000])
def test_a_tensor_comes_together_whatever_blocks_it_was_saved_in(
    divided: list[tuple[tuple[int, int], Tensor]], capacity: int
) -> None:
    found, streams = found_of(divided)
    into = {**empty(), "nothing": torch.empty(0, 3)}
    fake = load(found, streams, into, capacity)
    assert torch.equal(into["w"], WHOLE)
    assert into["n"].item() == 7.0
    assert len(fake.fetched) == (1 if capacity == 1000 else 2), "neighbours are read at once"


def test_what_needs_more_than_the_rank_s_own_memory_is_refused() -> None:
    found, streams = found_of(COLUMNS)
    with pytest.raises(SaverError, match="w is divided in another dimension than it was saved in"):
        load(found, streams, empty(), 63)


@pytest.mark.parametrize(
    ("into", "difference"),
    [
        ({"w": torch.zeros(4, 6)}, "n: float32 [], here none"),
        ({**empty(), "more": torch.zeros(1)}, "more: none, here float32 [1]"),
        (empty() | {"w": torch.zeros(6, 4)}, "w: float32 [4, 6], here float32 [6, 4]"),
        (empty() | {"w": torch.zeros(4, 6).double()}, "here float64 [4, 6]"),
    ],
)
def test_other_tensors_are_named(into: dict[str, Tensor], difference: str) -> None:
    found, streams = found_of(ROWS)
    with pytest.raises(SaverError, match="holds other tensors than this model has") as caught:
        load(found, streams, into, 1000)
    assert difference in str(caught.value)


def test_whole_tensors_are_laid_out_one_behind_the_other() -> None:
    layout, shards = lay_out_shards({"w": WHOLE, "n": SCALAR, "nothing": torch.empty(0, 3)})
    assert [(stream["name"], stream["at"], stream["offset"]) for stream in layout.pieces] == [
        ("w", [0, 0], 0),
        ("n", [], 128),
    ]
    assert layout.size == 192
    assert shards["w"].data_ptr() == WHOLE.data_ptr()
