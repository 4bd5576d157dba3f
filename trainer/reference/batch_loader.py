"""Batches made ahead by processes of torch's DataLoader. What they make follows from the step and
the share alone, so that their number, and how far ahead they are, changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from trainer.reference.data import Order

Key = tuple[int, int]  # step and share
Batch = tuple[Tensor, Tensor]


class Loading:
    """The batches of `shares` for the steps `first` to `last` (exclusive), in their order, by so
    many `workers`; `take` them so. Close it."""

    def __init__(
        self,
        order: Order,
        data: Tensor,
        shares: Sequence[int],
        first: int,
        last: int,
        workers: int,
    ) -> None:
        self._keys = _Keys(shares, first, last)
        loader: DataLoader[Batch] = DataLoader(
            _Batches(order, data), batch_size=None, sampler=self._keys, num_workers=workers
        )
        self._awaited = iter(self._keys)
        self._batches: Iterator[Batch] | None = iter(loader)
        self._next = next(self._awaited, None)

    def take(self, step: int, share: int) -> Batch | None:
        """The batch; None where it is not the next one."""
        if self._batches is None or self._next != (step, share):
            return None
        self._next = next(self._awaited, None)
        return next(self._batches)

    def close(self) -> None:
        """End the processes."""
        self._batches = None


class _Keys(Sequence[Key]):
    """Shares within steps."""

    def __init__(self, shares: Sequence[int], first: int, last: int) -> None:
        self._shares, self._first, self._steps = list(shares), first, max(0, last - first)

    def __len__(self) -> int:
        return self._steps * len(self._shares)

    def __getitem__(self, index: int) -> Key:  # type: ignore[override]
        if index >= len(self):
            raise IndexError(index)
        step, at = divmod(index, len(self._shares))
        return self._first + step, self._shares[at]


class _Batches(Dataset[Batch]):
    def __init__(self, order: Order, data: Tensor) -> None:
        self._order, self._data = order, data

    def __getitem__(self, key: Key) -> Batch:
        return self._order.batch_of(self._data, *key)
