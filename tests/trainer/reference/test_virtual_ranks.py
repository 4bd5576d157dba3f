"""Virtual ranks: every share is computed once, and shares are summed in order."""

from __future__ import annotations

import pytest
import torch

from trainer.reference.virtual_ranks import average_in_order, shares_of


@pytest.mark.req("ELA-02")
@pytest.mark.parametrize(
    ("size", "count"), [(1, 1), (1, 4), (2, 4), (3, 4), (4, 4), (3, 8), (32, 32), (24, 32)]
)
def test_every_share_is_computed_once(size: int, count: int) -> None:
    shares = [list(shares_of(rank, size, count)) for rank in range(size)]
    assert sorted(share for own in shares for share in own) == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_rank_without_a_share_is_refused() -> None:
    with pytest.raises(ValueError, match="--virtual-ranks 2 is too few for 3 ranks"):
        shares_of(0, 3, 2)


def test_the_order_of_the_shares_decides_the_bits() -> None:
    values = {0: 1e8, 1: -1e8, 2: 1.0}  # in float32 another order loses the 1
    total = torch.full((1,), 7.0)
    own = {share: torch.tensor([values[share]]) for share in (2, 0, 1)}
    average_in_order(own, total, 1, 3)
    assert total.item() == pytest.approx(1 / 3)
