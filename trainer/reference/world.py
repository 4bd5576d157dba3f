"""The ranks of one training run, and how they come to agree.

One process is a world of its own and needs no torch.distributed. Under torchrun the ranks average
gradients and agree after every step on what rank 0 decides or any of them was asked.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor, distributed

from trainer.hook.spotd_hook.job import PEER_TIMEOUT_S


@dataclass(frozen=True)
class World:
    """Who we are: `rank` of `size`, `local_rank` on this machine, and the device we compute on."""

    rank: int
    local_rank: int
    size: int
    device: torch.device

    @classmethod
    def join(
        cls,
        env: Mapping[str, str],
        device: str,
        *,
        group: bool = False,
        timeout_s: float = PEER_TIMEOUT_S,
    ) -> World:
        """The world that torchrun's variables describe, each rank of which waits for another for
        `timeout_s`; alone without them, or with `group` the one rank of a group.

        `device` is cpu, cuda or auto. Raises ValueError for cuda where there is none.
        """
        size = int(env.get("WORLD_SIZE", "1"))
        rank, local_rank = int(env.get("RANK", "0")), int(env.get("LOCAL_RANK", "0"))
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if device == "cuda":
            if not torch.cuda.is_available():
                raise ValueError("no CUDA device here: use --device cpu or auto")
            torch.cuda.set_device(local_rank)
            device = f"cuda:{local_rank}"
        backend = "nccl" if device.startswith("cuda") else "gloo"
        if size > 1:
            distributed.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
        elif group:
            store = distributed.HashStore()  # type: ignore[attr-defined]
            distributed.init_process_group(backend, store=store, rank=0, world_size=1)
        return cls(rank, local_rank, size, torch.device(device))

    def average(self, values: Tensor) -> None:
        """Replace `values` by its mean over the ranks."""
        self.total(values)
        if self.size > 1:
            values.div_(self.size)

    def total(self, values: Tensor) -> None:
        """Replace `values` by its sum over the ranks."""
        if self.size > 1:
            distributed.all_reduce(values)

    def add_up(self, numbers: Sequence[float]) -> list[float]:
        """The sums over the ranks, the same on every rank."""
        if self.size == 1:
            return list(numbers)
        values = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        distributed.all_reduce(values)
        return [float(value) for value in values.tolist()]

    @property
    def per_node(self) -> int:
        """Ranks on each machine; 0 where its launcher does not say."""
        told = os.environ.get("LOCAL_WORLD_SIZE", "")
        return int(told) if told.isdecimal() else 0

    def settled_s(self) -> float:
        """The time, once this rank's device has done what it was given. Alone there is nobody to
        be compared with, and nothing is waited for."""
        if self.size > 1 and self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return time.perf_counter()

    def one_of_all(self, number: float) -> list[float]:
        """Summed over the ranks: each rank's number at its place. Empty alone."""
        if self.size == 1:
            return []
        return [number if rank == self.rank else 0.0 for rank in range(self.size)]

    def follow(self, number: int) -> int:
        """Rank 0's number, on every rank."""
        if self.size == 1:
            return number
        value = torch.tensor([number], dtype=torch.int64, device=self.device)
        distributed.broadcast(value, src=0)
        return int(value.item())

    def announce(self, number: int) -> int:
        """`follow` for what nothing can change any more: rank 0 goes by it alone if another rank
        died before it heard."""
        try:
            return self.follow(number)
        except RuntimeError as error:  # whatever torch's backends raise
            if self.rank:
                raise
            print(f"not every rank heard how it ended: {error}", file=sys.stderr, flush=True)
            return number

    def spread(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite the tensors of every rank with rank 0's."""
        if self.size > 1:
            for tensor in tensors:
                distributed.broadcast(tensor, src=0)

    def leave(self) -> None:
        """Hang up; harmless when alone, and where another rank has died: all is said."""
        if distributed.is_initialized():
            with suppress(RuntimeError):
                distributed.destroy_process_group()
