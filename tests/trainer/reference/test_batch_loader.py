"""Batches made ahead are those that would be made when they are asked for."""

from __future__ import annotations

import pytest
import torch

from trainer.reference.batch_loader import Loading
from trainer.reference.data import Order

DATA = torch.arange(200, dtype=torch.int64).to(torch.uint8)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_batches_of_each_share_in_order(workers: int) -> None:
    order = Order(seed=1, block=4, batch=2, world_size=3)
    loading = Loading(order, DATA, range(0, 3, 2), 5, 7, workers)
    for step, share in [(5, 0), (5, 2), (6, 0), (6, 2)]:
        assert loading.take(step, share + 1) is None, "another's is not given for it"
        batch = loading.take(step, share)
        assert batch is not None
        wanted = order.batch_of(DATA, step, share)
        assert all(torch.equal(one, other) for one, other in zip(batch, wanted, strict=True))
    assert loading.take(7, 0) is None
    loading.close()
    assert loading.take(7, 0) is None
