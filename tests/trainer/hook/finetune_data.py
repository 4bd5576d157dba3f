"""Training data of every kind, for finetune.py. Not a test itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

Row = dict[str, torch.Tensor]
PASS = 44  # rows: 11 batches of 4


def row(number: int) -> Row:
    generator = torch.Generator().manual_seed(number)
    ids = torch.randint(0, 64, (16,), generator=generator)
    return {"input_ids": ids, "labels": ids}


class Plain(IterableDataset[Row]):
    """Each pass reads the same rows, in an order of the pass; shared out among workers."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Row]:
        order = torch.randperm(PASS, generator=torch.Generator().manual_seed(self.epoch))
        worker = get_worker_info()
        share = slice(worker.id, None, worker.num_workers) if worker else slice(None)
        for number in order.tolist()[share]:
            yield row(number)


class Same(IterableDataset[Row]):
    """Each pass is the same."""

    def __iter__(self) -> Iterator[Row]:
        yield from map(row, range(PASS))


class Sized(Same):
    """It says how long it is."""

    def __len__(self) -> int:
        return PASS


class Stream(IterableDataset[Row]):
    """Each pass goes on where the last one ended."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[Row]:
        for _ in range(PASS):
            self.at += 1
            yield row(self.at)


class Stateful(Stream):
    """A stream that says where it is, and that no other machine can read again."""

    def __init__(self) -> None:
        super().__init__()
        self.left = PASS

    def __iter__(self) -> Iterator[Row]:
        if int(os.environ.get("SPOTD_GENERATION") or 1) > 1 and not self.at:
            raise RuntimeError("the beginning is gone")
        while self.left:
            self.at, self.left = self.at + 1, self.left - 1
            yield row(self.at)
        self.left = PASS

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "left": self.left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.left = state["at"], state["left"]


class Random(IterableDataset[Row]):
    """It draws from torch's own generator."""

    def __iter__(self) -> Iterator[Row]:
        worker = get_worker_info()
        for _ in range(PASS // (worker.num_workers if worker else 1)):
            yield row(int(torch.randint(1 << 30, ())))


class Changing(IterableDataset[Row]):
    """Nobody else reads the same."""

    def __iter__(self) -> Iterator[Row]:
        for _ in range(PASS):
            yield row(int.from_bytes(os.urandom(4), "little"))


class Rows(Dataset[Row]):
    def __len__(self) -> int:
        return PASS

    def __getitem__(self, index: int) -> Row:
        return row(index)


KINDS: dict[str, type[Dataset[Row]]] = {
    "plain": Plain,
    "same": Same,
    "sized": Sized,
    "stream": Stream,
    "stateful": Stateful,
    "random": Random,
    "changing": Changing,
    "rows": Rows,
}


class CountingLoader:
    """A loader of a stream that keeps a state, like torchdata's, and reads nothing twice."""

    def __init__(self, dataset: Stream, **options: Any) -> None:
        self._loader = DataLoader(dataset, **options)
        self.dataset = dataset
        self._at, self._batches = 0, list[Any]()

    def __iter__(self) -> Iterator[Any]:
        if not self._at:
            self._batches = list(self._loader)
        while self._at < len(self._batches):
            self._at += 1
            yield self._batches[self._at - 1]
        self._at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self._at, "batches": self._batches, "stream": self.dataset.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._at, self._batches = state["at"], state["batches"]
        self.dataset.at = state["stream"]
