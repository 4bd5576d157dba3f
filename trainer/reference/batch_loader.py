"""Prepare batches ahead of time in worker processes of torch's DataLoader.

A batch depends only on its step and share, so the number of workers and how far ahead they are do
not change the training result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from trainer.reference.data import Order

Key = tuple[int, int]  # step and share
Batch = tuple[Tensor, Tensor]


class BatchLoader:
    """Loads the batches of `shares` for the steps `first` to `last` (exclusive) with `workers`
    processes. Take them in that order, and call `close`."""

    def __init__(
        self,
        order: Order,
        data: Tensor,
        shares: Sequence[int],
        first: int,
        last: int,
        workers: int,
    ) -> None:
        self._keys = _StepsAndShares(shares, first, last)
        loader: DataLoader[Batch] = DataLoader(
            _Batches(order, data), batch_size=None, sampler=self._keys, num_workers=workers
        )
        self._upcoming = iter(self._keys)
        self._batches: Iterator[Batch] | None = iter(loader)
        self._next = next(self._upcoming, None)

    def take(self, step: int, share: int) -> Batch | None:
        """The batch of this step and share; None if it is not the next one."""
        if self._batches is None or self._next != (step, share):
            return None
        self._next = next(self._upcoming, None)
        return next(self._batches)

    def close(self) -> None:
        """Stop the workers."""
        self._batches = None


class _StepsAndShares(Sequence[Key]):
    """All (step, share) pairs, ordered by step, then share."""

    def __init__(self, shares: Sequence[int], first: int, last: int) -> None:
        self._shares, self._first, self._steps = list(shares), first, max(0, last - first)

    def __len__(self) -> int:
        return self._steps * len(self._shares)

    def __getitem__(self, index: int) -> Key:  # type: ignore[override]
        if index >= len(self):
            raise IndexError(index)
        step, index_in_step = divmod(index, len(self._shares))
        return self._first + step, self._shares[index_in_step]


class _Batches(Dataset[Batch]):
    def __init__(self, order: Order, data: Tensor) -> None:
        self._order, self._data = order, data

    def __getitem__(self, key: Key) -> Batch:
        return self._order.batch_of(self._data, *key)
