"""The training text and the order of its windows."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.reference.data import Order, hash_ints, load_corpus, permute
from trainer.reference.virtual_ranks import shares_of


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 400), st.integers(0, 2**64))
def test_place_is_a_shuffle(count: int, key: int) -> None:
    assert sorted(permute(index, count, key) for index in range(count)) == list(range(count))


def test_another_key_is_another_shuffle() -> None:
    first, second = ([permute(index, 1000, key) for index in range(1000)] for key in (1, 2))
    assert sum(a == b for a, b in zip(first, second, strict=True)) < 10
    assert sum(b == a + 1 for a, b in itertools.pairwise(first)) < 10


@pytest.mark.behaviour("no sample is repeated or skipped in an epoch", way="spotd's trainer")
@pytest.mark.req("CKP-17", "CKP-18")
@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**9),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(2, 40),
    st.data(),
)
def test_no_sample_is_repeated_or_skipped_over_an_interruption(
    seed: int, batch: int, ranks: int, windows: int, data: st.DataObject
) -> None:
    """Step by step, whoever computes it, every epoch sees every window exactly once."""
    block = 4
    text = torch.arange(windows * block + 1).to(torch.int32)
    order = Order(seed, block, batch, ranks)
    steps = -(-3 * windows // (batch * ranks))
    resumed_at = data.draw(st.integers(0, steps))
    starts = []
    for step in [*range(resumed_at), *range(resumed_at, steps)]:
        again = Order(seed, block, batch, ranks) if step >= resumed_at else order
        for rank in range(ranks):
            inputs, targets = again.batch_of(text, step, rank)
            assert torch.equal(targets, inputs + 1)
            starts += (inputs[:, 0] // block).tolist()
    for epoch in range(3):
        assert sorted(starts[epoch * windows : (epoch + 1) * windows]) == list(range(windows))


@pytest.mark.req("ELA-04")
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9), st.lists(st.integers(1, 4), min_size=1, max_size=30))
def test_no_sample_is_repeated_or_skipped_by_another_number_of_ranks(
    seed: int, sizes: list[int]
) -> None:
    """Each step by another number of ranks, which share out four parts."""
    block, batch, parts, windows = 4, 2, 4, 8 * len(sizes)
    text = torch.arange(windows * block + 1).to(torch.int32)
    order, starts = Order(seed, block, batch, parts), []
    for step, size in enumerate(sizes):
        for rank in range(size):
            for share in shares_of(rank, size, parts):
                starts += (order.batch_of(text, step, share)[0][:, 0] // block).tolist()
    assert sorted(starts) == list(range(windows))


def test_batches_are_the_same_for_ever() -> None:
    """A change of these values would change the data order of running jobs."""
    text = torch.arange(10_000).to(torch.int32)
    inputs, _ = Order(seed=1, block=16, batch=4, world_size=2).batch_of(text, step=3, rank=1)
    assert inputs[:, 0].tolist() == [2224, 3152, 1632, 1712]
    assert hash_ints(1, 2, 3) == 7_702_586_659_592_502_839
    assert Order(1, 16, 4, 2).seed_of(3, 1) != Order(1, 16, 4, 2).seed_of(3, 0)


def test_the_default_text_is_real_and_stable() -> None:
    first, second = load_corpus(), load_corpus()
    assert first.digest == second.digest
    assert len(first.data) > 5_000_000
    assert b"def __init__(self" in bytes(first.data[:2_000_000].tolist())


def test_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "2.txt").write_bytes(b"two")
    (tmp_path / "a.txt").write_bytes(b"one")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x").write_bytes(b"no")
    folder = load_corpus(tmp_path)
    assert bytes(folder.data.tolist()) == b"onetwo"
    assert bytes(load_corpus(tmp_path / "a.txt").data.tolist()) == b"one"
    (tmp_path / "a.txt").write_bytes(b"One")
    assert load_corpus(tmp_path).digest != folder.digest


def test_nothing_to_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no text"):
        load_corpus(tmp_path)
    with pytest.raises(ValueError, match="--data"):
        load_corpus(tmp_path / "missing")
    with pytest.raises(ValueError, match="use more text"):
        Order(1, 16, 1, 1).batch_of(torch.zeros(10, dtype=torch.uint8), 0, 0)
