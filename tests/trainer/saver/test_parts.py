"""The parts of all ranks become one manifest if they belong together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spotd.wire import Block, Shard, Stream, WireError
from trainer.saver.parts import RankPart, TensorPiece, manifest_of, parse_part, read_piece
from trainer.saver.streams import chunk_ranges, shard_ranges

SHARED = TensorPiece("norm", "float32", (2,), (0,), (2,), 32)


def part(rank: int) -> RankPart:
    stream = Stream((Shard(f"f/r{rank:05d}-00000", 40, 4096, ("d",)),))
    piece = TensorPiece("w", "bfloat16", (8, 2), (4 * rank, 0), (4, 2), 0)
    return RankPart("f", 3, 7, rank, 2, 9, stream, (piece, SHARED), {"step": 7} if not rank else {})


def test_blocks_of_all_ranks_and_what_several_have_once() -> None:
    manifest = manifest_of("j", [part(0), part(1)])
    assert (manifest.step, manifest.world_size, manifest.size) == (7, 2, 80)
    assert manifest.state == {"step": 7}
    first, second = manifest.tensors
    assert first.blocks == (Block((0, 0), (4, 2), 0, 0), Block((4, 0), (4, 2), 1, 0))
    assert second.blocks == (Block((0,), (2,), 0, 32),)


def test_a_part_comes_back_as_it_was() -> None:
    assert parse_part(part(1).to_bytes()) == part(1)


@pytest.mark.parametrize(
    "others",
    [
        [],
        [part(0)],
        [replace(part(1), step=8)],
        [replace(part(1), pieces=(replace(SHARED, dtype="float64"),))],
    ],
    ids=["missing", "twice", "another step", "another tensor"],
)
def test_what_does_not_fit(others: list[RankPart]) -> None:
    with pytest.raises(WireError):
        manifest_of("j", [part(0), *others])


@pytest.mark.parametrize(
    "change", [{"at": [-1]}, {"at": [1]}, {"block": [3]}, {"block": [1, 1]}, {"offset": -1}]
)
def test_a_block_outside_its_tensor(change: dict[str, Any]) -> None:
    good = {
        "name": "a",
        "dtype": "int8",
        "shape": [2],
        "at": [0],
        "block": [2],
        "offset": 0,
    }
    read_piece(good)
    with pytest.raises(WireError):
        read_piece({**good, **change})


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 32 * 4096, 33 * 4096, 10**6 + 1])
def test_shards_are_whole_chunks_and_cover_all(size: int) -> None:
    shards = shard_ranges(size)
    assert [start for start, _ in shards] == [0, *(end for _, end in shards[:-1])]
    assert shards[-1][1] == size
    assert len(shards) <= 32
    chunks = [chunk for shard in shards for chunk in chunk_ranges(*shard)]
    assert chunks == list(chunk_ranges(0, size))
