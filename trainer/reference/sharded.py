"""What training changes, in shards: FSDP2 gives each rank its rows of every weight, and AdamW's two
moments lie beside them. No rank ever has all of it, and each saves and loads what it has.

The update and its clipping give the same bits however the rows are divided: every operation rounds
once, and the gradient's norm is summed from one number a row. With virtual ranks the gradients are
added up in the order of the shares as well, so that the whole run is the same on any number of
ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from trainer.hook.spotd_hook.checkpointer import Checkpointer
from trainer.hook.spotd_hook.engine import FoundCheckpoint
from trainer.hook.spotd_hook.layout import stage
from trainer.hook.spotd_hook.shards import lay_out_shards, load_shards
from trainer.hook.spotd_hook.tensor_copy import STANDING, TensorCopy
from trainer.reference.model import Gpt
from trainer.reference.world import World

_GROUPS = ("model", "adamw.mean", "adamw.square")


class ShardedState:
    """`model`'s parameters divided among the ranks of `world`. Gradients are summed by rounds: each
    round is one backward pass on every rank, `rounds(count)` of them add up `count` shares. With
    `ordered` in the order of the shares."""

    def __init__(
        self,
        model: Gpt,
        world: World,
        *,
        ordered: bool,
        betas: tuple[float, float] = (0.9, 0.95),
        decay: float = 0.1,
        clip: float = 1.0,
    ) -> None:
        self._betas, self._decay, self._clip, self._world = betas, decay, clip, world
        mesh = init_device_mesh(world.device.type, (world.size,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        self._reducers: list[_InOrder] = []
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(enable=True)
                module.set_gradient_divide_factor(1.0)
                if ordered:
                    self._reducers.append(_InOrder())
                    module.set_custom_reduce_scatter(self._reducers[-1])  # type: ignore[arg-type]
        self._parameters = dict(model.named_parameters())
        self._tensors: dict[str, Any] = {}
        for group in _GROUPS:
            for name, one in self._parameters.items():
                whole: Any = one.data if group == "model" else torch.zeros_like(one.data)
                self._tensors[f"{group}.{name}"] = whole
        self._layout, self._shards = lay_out_shards(self._tensors)
        self.pieces, self.size = self._layout.pieces, self._layout.size
        self._first_row = {piece["name"]: piece["at"][0] for piece in self.pieces}

    def rounds(self, count: int) -> int:
        """Backward passes of each rank for so many shares; a rank without a share in the last one
        computes for nothing, because the others need its part in what they exchange."""
        return -(-count // self._world.size)

    def expect(self, at: int, count: int) -> None:
        """The round `at` (from 0) of the sum over `count` shares is the next backward pass."""
        for reducer in self._reducers:
            reducer.expect(at, count)

    def scale(self, count: int) -> None:
        """Of the sum over `count` shares, make the mean."""
        for parameter in self._parameters.values():
            if parameter.grad is not None:
                _local(parameter.grad).div_(count)

    def clear(self) -> None:
        """No gradients."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def update(self, rate: float, step: int) -> bool:
        """As `TrainState.update`."""
        beta_1, beta_2 = self._betas
        norm = self._norm()
        if not math.isfinite(norm):
            self.clear()
            return False
        factor = min(1.0, self._clip / (norm + 1e-6))
        for name, parameter in self._parameters.items():
            if parameter.grad is None:
                continue
            # One rounding each: fused operations round otherwise in the tail of a tensor.
            grad = _local(parameter.grad).mul_(factor)
            weight, mean, square = (_local(self._tensors[f"{group}.{name}"]) for group in _GROUPS)
            mean.add_(grad.sub(mean).mul_(1 - beta_1))
            square.mul_(beta_2).add_(grad.square().mul_(1 - beta_2))
            scale = square.div(1 - beta_2 ** (step + 1)).sqrt_().add_(1e-8)
            if parameter.dim() >= 2:
                weight.mul_(1 - rate * self._decay)
            weight.sub_(mean.div(scale).mul_(rate / (1 - beta_1 ** (step + 1))))
        self.clear()
        return True

    def finite(self) -> bool:
        """Whether all of it are numbers, on every rank."""
        sums = [float(one.sum(dtype=torch.float64)) for one in self._shards.values()]
        bad = not all(math.isfinite(one) for one in sums)
        return not self._world.add_up([float(bad)])[0]

    def stage(
        self,
        arena: memoryview,
        filled: Callable[[int], None] = lambda _: None,
        copying: TensorCopy = STANDING,
    ) -> None:
        """As `TrainState.stage`, what this rank has."""
        stage(self._shards, self._layout, arena, filled, copying)

    def load(self, checkpointer: Checkpointer, found: FoundCheckpoint) -> None:
        """Take what this rank has from a checkpoint, however many ranks have saved it. Raises
        SaverError."""
        load_shards(checkpointer, found, self._tensors)

    def _norm(self) -> float:
        """Of all ranks' gradients, the same bits however they are divided."""
        at = 0
        total = sum(one.shape[0] for one in self._parameters.values())
        squares = torch.zeros(total, dtype=torch.float64, device=self._world.device)
        for name, parameter in self._parameters.items():
            first = self._first_row.get(f"{_GROUPS[0]}.{name}")
            if first is not None and parameter.grad is not None:
                grad = _local(parameter.grad).to(torch.float64)
                start = at + first
                squares[start : start + len(grad)] = grad.square().reshape(len(grad), -1).sum(1)
            at += parameter.shape[0]
        if self._world.size > 1:
            distributed.all_reduce(squares)  # each row is one rank's: nothing is added up yet
        return math.sqrt(squares.sum().item()) if torch.isfinite(squares).all() else math.nan


class _InOrder:
    """Adds up gradients in the order of the shares: what the ranks have is exchanged as it is, and
    each sums up its own rows. FSDP2 adds the results of the rounds: all but the last are zero."""

    def __init__(self) -> None:
        self._at, self._count = 0, 0
        self._total: Tensor | None = None

    def expect(self, at: int, count: int) -> None:
        self._at, self._count = at, count

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for what is exchanged."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """In place of a reduce-scatter."""
        del op, async_op
        heard = torch.empty_like(input_tensor)
        distributed.all_to_all_single(heard, input_tensor, group=group)
        size = distributed.get_world_size(group)
        if self._total is None or not self._at:
            self._total = torch.zeros_like(output_tensor)
        for rank, part in enumerate(heard.view(size, -1)):
            if self._at * size + rank < self._count:
                self._total.add_(part)
        last = (self._at + 1) * size >= self._count
        output_tensor.copy_(self._total) if last else output_tensor.zero_()


def _local(tensor: Any) -> Tensor:
    local: Tensor = tensor.to_local()
    return local
