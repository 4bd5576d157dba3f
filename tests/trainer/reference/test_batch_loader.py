"""Batches loaded ahead equal those made on demand."""

from __future__ import annotations

import pytest
import torch

from trainer.reference.batch_loader import BatchLoader
from trainer.reference.data import Order

DATA = torch.arange(200, dtype=torch.int64).to(torch.uint8)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_batches_of_each_share_in_order(workers: int) -> None:
    order = Order(seed=1, block=4, batch=2, world_size=3)
    loader = BatchLoader(order, DATA, range(0, 3, 2), 5, 7, workers)
    for step, share in [(5, 0), (5, 2), (6, 0), (6, 2)]:
        assert loader.take(step, share + 1) is None, "another's is not given for it"
        batch = loader.take(step, share)
        assert batch is not None
        expected = order.batch_of(DATA, step, share)
        assert all(torch.equal(left, right) for left, right in zip(batch, expected, strict=True))
    assert loader.take(7, 0) is None
    loader.close()
    assert loader.take(7, 0) is None
