"""The real trainer, of which one rank is slow: `SLEEPS` in the environment is "rank:seconds", of
each step. Not a test itself."""

from __future__ import annotations

import os
import sys
import time

import torch

from trainer import train
from trainer.reference.run import Run

RANK, _, SECONDS = os.environ["SLEEPS"].partition(":")
compute = Run.compute


def slow(self: Run, step: int, rank: int) -> torch.Tensor:
    if self.world.rank == int(RANK):
        time.sleep(float(SECONDS))
    return compute(self, step, rank)


if __name__ == "__main__":
    train.STOP.install()
    Run.compute = slow  # type: ignore[method-assign]
    sys.exit(train.main())
