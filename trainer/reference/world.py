"""The ranks of a training run and their collective operations.

A single process needs no torch.distributed. Under torchrun the ranks average gradients, and agree
after every step on what to do next.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor, distributed

from trainer.hook.spotd_hook.job import PEER_TIMEOUT_S
from trainer.hook.spotd_hook.ranks import local_world_size


@dataclass(frozen=True)
class World:
    """This process as `rank` of `size`, `local_rank` on this machine, computing on `device`."""

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
        """Join the ranks described by torchrun's environment variables.

        Without those variables the process is alone; with `group` it still gets a process group of
        one rank. Collective operations fail after `timeout_s`. `device` is cpu, cuda or auto.
        Raises ValueError for cuda without a CUDA device.
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
        """Replace `values` by their mean over the ranks."""
        self.sum_tensor(values)
        if self.size > 1:
            values.div_(self.size)

    def sum_tensor(self, values: Tensor) -> None:
        """Replace `values` by their sum over the ranks."""
        if self.size > 1:
            distributed.all_reduce(values)

    def sum_numbers(self, numbers: Sequence[float]) -> list[float]:
        """The sums of the numbers over the ranks."""
        if self.size == 1:
            return list(numbers)
        values = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        distributed.all_reduce(values)
        return [float(value) for value in values.tolist()]

    @property
    def ranks_per_node(self) -> int:
        """Ranks per machine; 0 if the launcher does not set it."""
        return local_world_size()

    def device_done_s(self) -> float:
        """The time after all work queued on this rank's device is done.

        With a single rank it does not wait: the time only serves to compare ranks.
        """
        if self.size > 1 and self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return time.perf_counter()

    def rank_vector(self, number: float) -> list[float]:
        """A vector whose sum over the ranks has each rank's number at its index; empty if alone."""
        if self.size == 1:
            return []
        return [number if rank == self.rank else 0.0 for rank in range(self.size)]

    def broadcast(self, number: int) -> int:
        """Return rank 0's number on every rank."""
        if self.size == 1:
            return number
        value = torch.tensor([number], dtype=torch.int64, device=self.device)
        distributed.broadcast(value, src=0)
        return int(value.item())

    def broadcast_exit_code(self, number: int) -> int:
        """Like `broadcast`, but on rank 0 the failure of another rank is only printed."""
        try:
            return self.broadcast(number)
        except RuntimeError as error:  # raised by all backends of torch
            if self.rank:
                raise
            print(f"not every rank received the result: {error}", file=sys.stderr, flush=True)
            return number

    def broadcast_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite the tensors of every rank with those of rank 0."""
        if self.size > 1:
            for tensor in tensors:
                distributed.broadcast(tensor, src=0)

    def close(self) -> None:
        """Destroy the process group, if any. Ignores errors of other ranks."""
        if distributed.is_initialized():
            with suppress(RuntimeError):
                distributed.destroy_process_group()
