"""The real trainer, whose snapshots, small as they are, are copied beside training, and take
`COPY_S` in the environment. Not a test itself."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable

import torch

import trainer.reference.run
from tests.trainer.held import hold
from trainer import train
from trainer.hook.spotd_hook.tensor_copy import HostCopy, Part


class Slow(HostCopy):
    def run(self, parts: Iterable[Part], filled: Callable[[int], None]) -> None:
        for part in parts:
            time.sleep(float(os.environ["COPY_S"]) / 3)  # the state is in three parts
            super().run([part], filled)


def slowly(_: torch.device) -> Slow:
    return Slow()


if __name__ == "__main__":
    train.STOP.install()
    trainer.reference.run.MIN_BYTES = 0  # type: ignore[attr-defined]
    trainer.reference.run.background_copy = slowly  # type: ignore[attr-defined]
    hold()
    sys.exit(train.main())
