"""The real trainer, whose snapshots, small as they are, are copied beside training, and take
`COPY_S` in the environment. Not a test itself."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

import trainer.run
from tests.trainer.held import hold
from trainer import train
from trainer.hook.spotd_hook.layout import copier


def slowly(device: torch.device) -> Callable[[Tensor, Tensor], object]:
    move = copier(device)

    def slow(target: Tensor, source: Tensor) -> None:
        time.sleep(float(os.environ["COPY_S"]) / 3)  # the state is in three parts
        move(target, source)

    return slow


if __name__ == "__main__":
    train.STOP.install()
    trainer.run.LEAST_BYTES = 0  # type: ignore[attr-defined]
    trainer.run.copier = slowly  # type: ignore[attr-defined]
    hold()
    sys.exit(train.main())
