"""Communication between the ranks of a user's program, without delaying it.

The values of each step travel in a separate sum, over CPU and network, while the next step is
computed; all ranks know the result one step later. Needs torch, Python >= 3.10.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from .job import Job
from .layout import lay_out, read_tensors, stage

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.002, 0.05  # between two looks at whether all ranks answered


def local_world_size() -> int:
    """Ranks on this machine; 0 if the launcher does not say."""
    value = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(value) if value.isdecimal() else 0


@dataclass
class Ranks:
    """This process: `rank` of `size`, `local_rank` on this machine."""

    rank: int = 0
    local_rank: int = 0
    size: int = 1
    _group: Any = None
    _pending: tuple[Any, Tensor] | None = field(default=None, init=False)

    @classmethod
    def join(cls, env: Mapping[str, str] = os.environ, *, timeout_s: float | None = None) -> Ranks:
        """Return the ranks that torch.distributed was set up for, with a group of their own.

        A collective waits for other ranks as long as the job says, or for `timeout_s`. Raises
        RuntimeError if torchrun started several processes and torch.distributed is not initialized.
        """
        local_rank = int(env.get("LOCAL_RANK", "0"))
        if distributed.is_available() and distributed.is_initialized():
            size = distributed.get_world_size()
            group = None
            if size > 1:
                timeout = timedelta(seconds=timeout_s or Job.from_env(env).peer_timeout_s)
                group = distributed.new_group(backend="gloo", timeout=timeout)
            return cls(distributed.get_rank(), local_rank, size, group)
        if int(env.get("WORLD_SIZE", "1")) > 1:
            raise RuntimeError(
                f"this is one of {env['WORLD_SIZE']} processes without torch.distributed: "
                "call torch.distributed.init_process_group() before spotd_hook is used"
            )
        return cls()

    @property
    def per_node(self) -> int:
        """Ranks on each machine; 0 if the launcher does not say."""
        return local_world_size()

    def exchange(self, numbers: Sequence[float]) -> list[float] | None:
        """Start to sum `numbers` over the ranks; return the sums of the previous call.

        None at the first call. With one rank, the numbers themselves.
        """
        if self.size == 1:
            return list(numbers)
        sums = self.finish_exchange()
        values = torch.tensor(numbers, dtype=torch.float64)
        work = distributed.all_reduce(values, group=self._group, async_op=True)
        self._pending = work, values
        return sums

    def finish_exchange(self) -> list[float] | None:
        """Return the sums that are being computed; None if there are none."""
        if self._pending is None:
            return None
        work, values = self._pending
        self._pending = None
        work.wait()
        return [float(value) for value in values.tolist()]

    def totals(self, numbers: Sequence[float]) -> list[float]:
        """Return the sums of the ranks' `numbers` on every rank."""
        return (self.exchange(numbers) or self.finish_exchange() or []) if numbers else []

    def rows(
        self, numbers: Sequence[float], gives_up: Callable[[float], bool]
    ) -> list[list[float]] | None:
        """Return each rank's `numbers` on every rank; None once `gives_up(seconds)` says so.

        It waits in Python alone, so that a thread that does this can end with the program. Raises
        RuntimeError if another rank has ended.
        """
        if self.size == 1:
            return [list(numbers)]
        own = torch.tensor(numbers, dtype=torch.float64)
        gathered = [torch.zeros_like(own) for _ in range(self.size)]
        work = distributed.all_gather(gathered, own, group=self._group, async_op=True)
        pause_s = FIRST_PAUSE_S
        while not work.is_completed():
            if gives_up(pause_s):
                return None
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        work.wait()  # raises its error
        return [[float(value) for value in row.tolist()] for row in gathered]

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value (any JSON value) on every rank."""
        if self.size == 1:
            return value
        text = json.dumps(value).encode() if not self.rank else b""
        length = torch.tensor([len(text)])
        distributed.broadcast(length, src=0, group=self._group)
        content = torch.zeros(int(length.item()), dtype=torch.uint8)
        if text:
            content = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        distributed.broadcast(content, src=0, group=self._group)
        return json.loads(bytes(content.tolist()))

    def maximum(self, number: int) -> int:
        """Return the largest of the ranks' numbers on every rank."""
        if self.size == 1:
            return number
        value = torch.tensor([number])
        distributed.all_reduce(value, op=distributed.ReduceOp.MAX, group=self._group)
        return int(value.item())

    def broadcast_exit_code(self, code: int) -> int:
        """Broadcast the exit code; rank 0 continues alone if another rank has died."""
        try:
            return int(self.broadcast(code))
        except RuntimeError:  # raised by torch's backends
            if self.rank:
                raise
            return code

    def broadcast_tensors(self, tensors: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        """Return rank 0's CPU tensors on every rank."""
        if self.size == 1:
            return dict(tensors or {})
        named = [
            (name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape))
            for name, tensor in (tensors or {}).items()
        ]
        tensors_by_name = {}
        for name, dtype, shape in self.broadcast(named):
            if tensors is None:
                tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            else:
                tensor = tensors[name].contiguous()
            flat = tensor.reshape(-1).view(torch.uint8)
            if flat.numel():
                distributed.broadcast(flat, src=0, group=self._group)
            tensors_by_name[name] = tensor
        return tensors_by_name

    def gather(
        self, tree: Any, tensors: Mapping[str, Tensor]
    ) -> list[tuple[Any, dict[str, Tensor]]]:
        """Return all ranks' trees (JSON values) and tensors on rank 0; [] on the others."""
        if self.size == 1:
            return [(tree, dict(tensors))]
        layout = lay_out(tensors)
        description = json.dumps([tree, list(layout.pieces)]).encode()
        lengths = [torch.zeros(2, dtype=torch.int64) for _ in range(self.size)]
        own_lengths = torch.tensor([layout.size, len(description)])
        distributed.all_gather(lengths, own_lengths, group=self._group)
        largest = max(int(length.sum()) for length in lengths)
        packed = bytearray(largest)
        stage(tensors, layout, memoryview(packed))
        packed[layout.size : layout.size + len(description)] = description
        buffers = [bytearray(largest) for _ in lengths] if not self.rank else []
        receive_into = [torch.frombuffer(buffer, dtype=torch.uint8) for buffer in buffers] or None
        sent = torch.frombuffer(packed, dtype=torch.uint8)
        distributed.gather(sent, receive_into, dst=0, group=self._group)
        return [
            _unpack(memoryview(buffer), *map(int, length))
            for buffer, length in zip(buffers, lengths, strict=False)
        ]


def _unpack(packed: memoryview, size: int, description_size: int) -> tuple[Any, dict[str, Tensor]]:
    tree, pieces = json.loads(bytes(packed[size : size + description_size]))
    return tree, read_tensors(pieces, packed)
