"""The ranks of somebody's training program, and how they come to agree without holding it up.

Each step's words travel in a sum of their own, over CPU and network, while the next step is
computed: what comes of them is known one step later, to all ranks alike. Needs torch,
Python >= 3.10.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from .job import Job
from .layout import lay_out, read, stage


@dataclass
class Ranks:
    """Who we are: `rank` of `size`, `local_rank` on this machine."""

    rank: int = 0
    local_rank: int = 0
    size: int = 1
    _group: Any = None
    _under_way: tuple[Any, Tensor] | None = field(default=None, init=False)

    @classmethod
    def join(cls, env: Mapping[str, str] = os.environ) -> Ranks:
        """The ranks that torch.distributed has been set up for, each of which waits for another as
        long as the job says. Raises RuntimeError where torchrun started several and it has not."""
        local_rank = int(env.get("LOCAL_RANK", "0"))
        if distributed.is_available() and distributed.is_initialized():
            size = distributed.get_world_size()
            group = None
            if size > 1:
                patience = timedelta(seconds=Job.from_env(env).peer_timeout_s)
                group = distributed.new_group(backend="gloo", timeout=patience)
            return cls(distributed.get_rank(), local_rank, size, group)
        if int(env.get("WORLD_SIZE", "1")) > 1:
            raise RuntimeError(
                f"this is one of {env['WORLD_SIZE']} processes, and they do not know each other: "
                "call torch.distributed.init_process_group() before spotd_hook is used"
            )
        return cls()

    @property
    def per_node(self) -> int:
        """Ranks on each machine; 0 where its launcher does not say."""
        told = os.environ.get("LOCAL_WORLD_SIZE", "")
        return int(told) if told.isdecimal() else 0

    def exchange(self, numbers: Sequence[float]) -> list[float] | None:
        """Begin to add up `numbers` over the ranks; the sums of the call before this one, None at
        the first. Alone: the numbers themselves."""
        if self.size == 1:
            return list(numbers)
        before = self.settle()
        values = torch.tensor(numbers, dtype=torch.float64)
        work = distributed.all_reduce(values, group=self._group, async_op=True)
        self._under_way = work, values
        return before

    def settle(self) -> list[float] | None:
        """The sums that are under way, None where none are."""
        if self._under_way is None:
            return None
        work, values = self._under_way
        self._under_way = None
        work.wait()
        return [float(value) for value in values.tolist()]

    def follow(self, value: Any) -> Any:
        """Rank 0's value, which JSON has, on every rank."""
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

    def most(self, number: int) -> int:
        """The greatest of the ranks' numbers, on every rank."""
        if self.size == 1:
            return number
        value = torch.tensor([number])
        distributed.all_reduce(value, op=distributed.ReduceOp.MAX, group=self._group)
        return int(value.item())

    def announce(self, code: int) -> int:
        """`follow` for what nothing can change any more: rank 0 goes by it alone if another rank
        died before it heard."""
        try:
            return int(self.follow(code))
        except RuntimeError:  # whatever torch's backends raise
            if self.rank:
                raise
            return code

    def spread(self, tensors: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        """Rank 0's tensors of the CPU, on every rank."""
        if self.size == 1:
            return dict(tensors or {})
        named = [
            (name, str(one.dtype).removeprefix("torch."), list(one.shape))
            for name, one in (tensors or {}).items()
        ]
        found = {}
        for name, dtype, shape in self.follow(named):
            if tensors is None:
                one = torch.empty(shape, dtype=getattr(torch, dtype))
            else:
                one = tensors[name].contiguous()
            flat = one.reshape(-1).view(torch.uint8)
            if flat.numel():
                distributed.broadcast(flat, src=0, group=self._group)
            found[name] = one
        return found

    def gather(
        self, tree: Any, tensors: Mapping[str, Tensor]
    ) -> list[tuple[Any, dict[str, Tensor]]]:
        """What all ranks have, by rank, on rank 0; there alone. JSON has the tree."""
        if self.size == 1:
            return [(tree, dict(tensors))]
        layout = lay_out(tensors)
        about = json.dumps([tree, list(layout.pieces)]).encode()
        lengths = [torch.zeros(2, dtype=torch.int64) for _ in range(self.size)]
        mine = torch.tensor([layout.size, len(about)])
        distributed.all_gather(lengths, mine, group=self._group)
        most = max(int(one.sum()) for one in lengths)
        packed = bytearray(most)
        stage(tensors, layout, memoryview(packed))
        packed[layout.size : layout.size + len(about)] = about
        heard = [bytearray(most) for _ in lengths] if not self.rank else []
        into = [torch.frombuffer(one, dtype=torch.uint8) for one in heard] or None
        sent = torch.frombuffer(packed, dtype=torch.uint8)
        distributed.gather(sent, into, dst=0, group=self._group)
        return [
            _unpack(memoryview(one), *map(int, length))
            for one, length in zip(heard, lengths, strict=False)
        ]


def _unpack(packed: memoryview, size: int, more: int) -> tuple[Any, dict[str, Tensor]]:
    tree, pieces = json.loads(bytes(packed[size : size + more]))
    return tree, read(pieces, packed)
