"""The real trainer, in which some gradients are not numbers: `POISON` in the environment is
"rank:first-last", the steps from 1. Not a test itself."""

from __future__ import annotations

import os
import sys

import torch

from trainer import train
from trainer.reference.run import Run

RANK, _, STEPS = os.environ["POISON"].partition(":")
FIRST, LAST = (int(step) for step in STEPS.split("-"))
compute = Run.compute


def poisoned(self: Run, step: int, rank: int) -> torch.Tensor:
    loss = compute(self, step, rank)
    if self.world.rank == int(RANK) and FIRST <= step + 1 <= LAST:
        self.state.grads[7] = float("nan")
    return loss


if __name__ == "__main__":
    train.STOP.install()
    Run.compute = poisoned  # type: ignore[method-assign]
    sys.exit(train.main())
