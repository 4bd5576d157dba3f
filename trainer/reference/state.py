"""Everything that training changes, in three flat tensors: weights and AdamW's two moments.

The parameters are views into one tensor, and so are the gradients. A step of the optimizer is a
handful of operations whatever the number of layers, averaging gradients over ranks is one
all-reduce, and a snapshot is three copies. (torch.optim and DistributedDataParallel would load the
whole of torch's compiler first, a second that a resuming job does not have.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from trainer.hook.spotd_hook.tensor_copy import STANDING, TensorCopy, parts_of

ALIGN = 16  # elements: tensors begin at multiples of 64 bytes


@dataclass(frozen=True)
class Schedule:
    """Learning rate over steps: linear warm-up, then a cosine down to a tenth."""

    peak: float = 1e-3
    warmup_steps: int = 20
    steps: int = 1000

    def rate(self, step: int) -> float:
        """The rate of the step with this number, from 0."""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return self.peak * (0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, done))))


class TrainState:
    """`model`'s parameters taken over into flat float32 storage on `device`, with AdamW's state."""

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        *,
        betas: tuple[float, float] = (0.9, 0.95),
        decay: float = 0.1,
        clip: float = 1.0,
    ) -> None:
        self._betas, self._decay, self._clip = betas, decay, clip
        # Matrices first: weight decay is for them alone, and so works on one slice.
        named = sorted(model.named_parameters(), key=lambda item: item[1].dim() < 2)
        places, end = [], 0
        for name, parameter in named:
            places.append((name, parameter, end))
            end += -(-parameter.numel() // ALIGN) * ALIGN
            if parameter.dim() >= 2:
                self._decay_end = end
        self.weights, self.grads, self.mean, self.square = (
            torch.zeros(end, device=device) for _ in range(4)
        )
        for _, parameter, start in places:
            views = (t[start : start + parameter.numel()] for t in (self.weights, self.grads))
            weight, grad = (view.view(parameter.shape) for view in views)
            weight.copy_(parameter.data)
            parameter.data, parameter.grad = weight, grad
        self._groups = {
            "model": self.weights,
            "adamw.mean": self.mean,
            "adamw.square": self.square,
        }
        self.size = 4 * len(self._groups) * end
        self.pieces: list[dict[str, Any]] = [
            {
                "name": f"{group}.{name}",
                "dtype": "float32",
                "shape": list(parameter.shape),
                "at": [0] * parameter.dim(),
                "block": list(parameter.shape),
                "offset": 4 * (number * end + start),
            }
            for number, group in enumerate(self._groups)
            for name, parameter, start in places
        ]

    def update(self, rate: float, step: int) -> bool:
        """One step of AdamW with clipped gradients; `step` counts from 0. Clears the gradients.

        False, and nothing else is changed, when they are no finite numbers.
        """
        beta_1, beta_2 = self._betas
        norm = torch.linalg.vector_norm(self.grads)
        if not math.isfinite(norm.item()):
            self.grads.zero_()
            return False
        self.grads.mul_((self._clip / (norm + 1e-6)).clamp(max=1.0))
        self.mean.lerp_(self.grads, 1 - beta_1)
        self.square.mul_(beta_2).addcmul_(self.grads, self.grads, value=1 - beta_2)
        scale = (self.square / (1 - beta_2 ** (step + 1))).sqrt_().add_(1e-8)
        self.weights[: self._decay_end].mul_(1 - rate * self._decay)
        self.weights.addcdiv_(self.mean, scale, value=-rate / (1 - beta_1 ** (step + 1)))
        self.grads.zero_()
        return True

    def clear(self) -> None:
        """No gradients."""
        self.grads.zero_()

    def finite(self) -> bool:
        """Whether all of it are numbers. One that is not makes the sum none."""
        return all(math.isfinite(flat.sum(dtype=torch.float64)) for flat in self.flats())

    def stage(
        self,
        arena: memoryview,
        filled: Callable[[int], None] = lambda _: None,
        copying: TensorCopy = STANDING,
    ) -> None:
        """Copy everything into `arena` (`size` bytes of host memory); `filled` hears how many bytes
        of it are final."""
        both = zip(self._parts(arena), self._groups.values(), strict=True)
        starts = range(0, self.size, self.size // len(self._groups))
        parts = (parts_of(*pair, start) for pair, start in zip(both, starts, strict=True))
        copying.run(chain.from_iterable(parts), filled)

    def load(self, arena: memoryview) -> None:
        """Take everything from `arena`."""
        for source, target in zip(self._parts(arena), self._groups.values(), strict=True):
            target.copy_(source)

    def flats(self) -> tuple[Tensor, ...]:
        """The three flat tensors, for sending them to other ranks."""
        return tuple(self._groups.values())

    def _parts(self, arena: memoryview) -> tuple[Tensor, ...]:
        flat = torch.frombuffer(arena, dtype=torch.float32, count=3 * len(self.weights))
        size = len(self.weights)
        return flat[:size], flat[size : 2 * size], flat[2 * size :]
