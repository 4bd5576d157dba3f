"""Training state in three flat tensors: weights and the two moments of AdamW.

The parameters are views into one tensor, and so are the gradients. An optimizer step is a few
operations for any number of layers, averaging gradients over ranks is one all-reduce, and a
snapshot is three copies. (torch.optim and DistributedDataParallel are not used because they import
torch's compiler, which delays a resuming job by a second.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from trainer.hook.spotd_hook.tensor_copy import BLOCKING, TensorCopy, parts_of

# AdamW, and the norm that gradients are clipped to.
BETAS, DECAY, CLIP = (0.9, 0.95), 0.1, 1.0
ALIGN = 16  # elements, so that tensors start at multiples of 64 bytes


@dataclass(frozen=True)
class Schedule:
    """Learning rate: linear warm-up, then cosine decay to a tenth of the peak."""

    peak: float = 1e-3
    warmup_steps: int = 20
    steps: int = 1000

    def rate(self, step: int) -> float:
        """Learning rate of `step`, from 0."""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return self.peak * (0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, done))))


class TrainState:
    """Flat float32 storage on `device` for the parameters of `model`, with the state of AdamW."""

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
    ) -> None:
        # Matrices first: only they get weight decay, which thus works on one slice.
        parameters = sorted(model.named_parameters(), key=lambda item: item[1].dim() < 2)
        offsets, count = [], 0
        for name, parameter in parameters:
            offsets.append((name, parameter, count))
            count += -(-parameter.numel() // ALIGN) * ALIGN
            if parameter.dim() >= 2:
                self._decay_end = count
        self.weights, self.grads, self.mean, self.square = (
            torch.zeros(count, device=device) for _ in range(4)
        )
        for _, parameter, start in offsets:
            views = (flat[start : start + parameter.numel()] for flat in (self.weights, self.grads))
            weight, grad = (view.view(parameter.shape) for view in views)
            weight.copy_(parameter.data)
            parameter.data, parameter.grad = weight, grad
        self._groups = {
            "model": self.weights,
            "adamw.mean": self.mean,
            "adamw.square": self.square,
        }
        self.size = 4 * len(self._groups) * count
        self.pieces: list[dict[str, Any]] = [
            {
                "name": f"{group}.{name}",
                "dtype": "float32",
                "shape": list(parameter.shape),
                "at": [0] * parameter.dim(),
                "block": list(parameter.shape),
                "offset": 4 * (number * count + start),
            }
            for number, group in enumerate(self._groups)
            for name, parameter, start in offsets
        ]

    def update(self, rate: float, step: int) -> bool:
        """Apply one step of AdamW with clipped gradients, then clear them. `step` counts from 0.

        Returns False, changing nothing else, if the gradients are not finite.
        """
        beta_1, beta_2 = BETAS
        norm = torch.linalg.vector_norm(self.grads)
        if not math.isfinite(norm.item()):
            self.grads.zero_()
            return False
        self.grads.mul_((CLIP / (norm + 1e-6)).clamp(max=1.0))
        self.mean.lerp_(self.grads, 1 - beta_1)
        self.square.mul_(beta_2).addcmul_(self.grads, self.grads, value=1 - beta_2)
        scale = (self.square / (1 - beta_2 ** (step + 1))).sqrt_().add_(1e-8)
        self.weights[: self._decay_end].mul_(1 - rate * DECAY)
        self.weights.addcdiv_(self.mean, scale, value=-rate / (1 - beta_1 ** (step + 1)))
        self.grads.zero_()
        return True

    def clear_gradients(self) -> None:
        """Set all gradients to zero."""
        self.grads.zero_()

    def is_finite(self) -> bool:
        """Whether all values are finite: a non-finite value makes its tensor's sum non-finite."""
        return all(math.isfinite(flat.sum(dtype=torch.float64)) for flat in self.flat_tensors())

    def stage(
        self,
        arena: memoryview,
        filled: Callable[[int], None] = lambda _: None,
        copying: TensorCopy = BLOCKING,
    ) -> None:
        """Copy the state into `arena`, `size` bytes of host memory.

        `filled(count)` is called as soon as the first `count` bytes are final.
        """
        both = zip(self._parts(arena), self._groups.values(), strict=True)
        starts = range(0, self.size, self.size // len(self._groups))
        parts = (parts_of(*pair, start) for pair, start in zip(both, starts, strict=True))
        copying.run(chain.from_iterable(parts), filled)

    def load(self, arena: memoryview) -> None:
        """Load the state from `arena`."""
        for source, target in zip(self._parts(arena), self._groups.values(), strict=True):
            target.copy_(source)

    def flat_tensors(self) -> tuple[Tensor, ...]:
        """The three flat tensors."""
        return tuple(self._groups.values())

    def _parts(self, arena: memoryview) -> tuple[Tensor, ...]:
        flat = torch.frombuffer(arena, dtype=torch.float32, count=3 * len(self.weights))
        size = len(self.weights)
        return flat[:size], flat[size : 2 * size], flat[2 * size :]
