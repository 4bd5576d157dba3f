"""Training state sharded by FSDP2: each rank has some rows of every weight and of AdamW's moments.

No rank ever has the complete state; each saves and loads its own shards.

The update and gradient clipping give the same bits for any division of the rows: every operation
rounds once, and the gradient norm is summed from one number per row. With virtual ranks gradients
are also summed in the order of the shares, so the entire run is the same on any number of ranks.
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
from trainer.hook.spotd_hook.tensor_copy import BLOCKING, TensorCopy
from trainer.reference.model import Gpt
from trainer.reference.state import BETAS, CLIP, DECAY
from trainer.reference.world import World

_GROUPS = ("model", "adamw.mean", "adamw.square")


class ShardedState:
    """Shards the parameters of `model` over the ranks of `world`.

    Gradients are accumulated in rounds, each one backward pass on every rank; `round_count(count)`
    rounds sum `count` shares. With `ordered` they are summed in the order of the shares.
    """

    def __init__(
        self,
        model: Gpt,
        world: World,
        *,
        ordered: bool,
    ) -> None:
        self._world = world
        mesh = init_device_mesh(world.device.type, (world.size,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        self._reducers: list[_OrderedReduceScatter] = []
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(enable=True)
                module.set_gradient_divide_factor(1.0)
                if ordered:
                    self._reducers.append(_OrderedReduceScatter())
                    module.set_custom_reduce_scatter(self._reducers[-1])  # type: ignore[arg-type]
        self._parameters = dict(model.named_parameters())
        self._tensors: dict[str, Any] = {}
        for group in _GROUPS:
            for name, parameter in self._parameters.items():
                data = parameter.data
                self._tensors[f"{group}.{name}"] = (
                    data if group == "model" else torch.zeros_like(data)
                )
        self._layout, self._shards = lay_out_shards(self._tensors)
        self.pieces, self.size = self._layout.pieces, self._layout.size
        self._first_row = {piece["name"]: piece["at"][0] for piece in self.pieces}

    def round_count(self, count: int) -> int:
        """Backward passes needed for `count` shares.

        In the last round a rank may have no share; it computes a dummy pass because all ranks must
        take part in the collectives.
        """
        return -(-count // self._world.size)

    def start_round(self, at: int, count: int) -> None:
        """Announce that the next backward pass is round `at` (from 0) of `count` shares."""
        for reducer in self._reducers:
            reducer.start_round(at, count)

    def scale(self, count: int) -> None:
        """Turn the gradients' sum over `count` shares into their mean."""
        for parameter in self._parameters.values():
            if parameter.grad is not None:
                _local(parameter.grad).div_(count)

    def clear_gradients(self) -> None:
        """Drop all gradients."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def update(self, rate: float, step: int) -> bool:
        """See `TrainState.update`."""
        beta_1, beta_2 = BETAS
        norm = self._norm()
        if not math.isfinite(norm):
            self.clear_gradients()
            return False
        factor = min(1.0, CLIP / (norm + 1e-6))
        for name, parameter in self._parameters.items():
            if parameter.grad is None:
                continue
            # No fused operations: they round differently in the tail of a tensor.
            grad = _local(parameter.grad).mul_(factor)
            weight, mean, square = (_local(self._tensors[f"{group}.{name}"]) for group in _GROUPS)
            mean.add_(grad.sub(mean).mul_(1 - beta_1))
            square.mul_(beta_2).add_(grad.square().mul_(1 - beta_2))
            scale = square.div(1 - beta_2 ** (step + 1)).sqrt_().add_(1e-8)
            if parameter.dim() >= 2:
                weight.mul_(1 - rate * DECAY)
            weight.sub_(mean.div(scale).mul_(rate / (1 - beta_1 ** (step + 1))))
        self.clear_gradients()
        return True

    def is_finite(self) -> bool:
        """Whether all values on all ranks are finite."""
        sums = [float(shard.sum(dtype=torch.float64)) for shard in self._shards.values()]
        bad = not all(math.isfinite(value) for value in sums)
        return not self._world.sum_numbers([float(bad)])[0]

    def stage(
        self,
        arena: memoryview,
        filled: Callable[[int], None] = lambda _: None,
        copying: TensorCopy = BLOCKING,
    ) -> None:
        """Like `TrainState.stage`, for the shards of this rank."""
        stage(self._shards, self._layout, arena, filled, copying)

    def load(self, checkpointer: Checkpointer, checkpoint: FoundCheckpoint) -> None:
        """Load this rank's shards from a checkpoint of any number of ranks. Raises SaverError."""
        load_shards(checkpointer, checkpoint, self._tensors)

    def _norm(self) -> float:
        """Gradient norm over all ranks, the same bits for any division of the rows."""
        at = 0
        total = sum(parameter.shape[0] for parameter in self._parameters.values())
        squares = torch.zeros(total, dtype=torch.float64, device=self._world.device)
        for name, parameter in self._parameters.items():
            first = self._first_row.get(f"{_GROUPS[0]}.{name}")
            if first is not None and parameter.grad is not None:
                grad = _local(parameter.grad).to(torch.float64)
                start = at + first
                squares[start : start + len(grad)] = grad.square().reshape(len(grad), -1).sum(1)
            at += parameter.shape[0]
        if self._world.size > 1:
            # Each row is non-zero on one rank only, so this sum is exact.
            distributed.all_reduce(squares)
        return math.sqrt(squares.sum().item()) if torch.isfinite(squares).all() else math.nan


class _OrderedReduceScatter:
    """A reduce-scatter that sums gradients in the order of the shares.

    Ranks exchange their gradients unreduced, and each sums its own rows. FSDP2 adds up the results
    of the rounds, so all rounds but the last return zero.
    """

    def __init__(self) -> None:
        self._at, self._count = 0, 0
        self._total: Tensor | None = None

    def start_round(self, at: int, count: int) -> None:
        self._at, self._count = at, count

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Allocate a communication buffer, as FSDP2 requires."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Reduce-scatter `input_tensor` into `output_tensor`."""
        del op, async_op
        received = torch.empty_like(input_tensor)
        distributed.all_to_all_single(received, input_tensor, group=group)
        size = distributed.get_world_size(group)
        if self._total is None or not self._at:
            self._total = torch.zeros_like(output_tensor)
        for rank, part in enumerate(received.view(size, -1)):
            if self._at * size + rank < self._count:
                self._total.add_(part)
        last = (self._at + 1) * size >= self._count
        output_tensor.copy_(self._total) if last else output_tensor.zero_()


def _local(tensor: Any) -> Tensor:
    local: Tensor = tensor.to_local()
    return local
