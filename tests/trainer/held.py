"""The real trainer, which makes no step after HELD_AFTER of them until it is to stop, or the file
HELD_UNTIL is there, and one for each save that it is asked for: whoever is to strike it in its
midst finds it there, however slow the machine is. Not a test itself.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch

from trainer import train
from trainer.hook.spotd_hook.stop import StopRequests
from trainer.reference.run import Run


def hold() -> None:
    """From now on, in this process, where its environment says so."""
    if "HELD_AFTER" not in os.environ:
        return
    after, until = int(os.environ["HELD_AFTER"]), Path(os.environ["HELD_UNTIL"])
    compute = Run.compute

    def held(self: Run, step: int, rank: int, weight: float = 1.0) -> torch.Tensor:
        while step >= after and not (train.STOP.stopping or asked(train.STOP) or until.exists()):
            time.sleep(0.005)
        return compute(self, step, rank, weight)

    Run.compute = held  # type: ignore[method-assign]


def asked(stop: StopRequests) -> bool:
    """Whether a save was, and nobody has taken it yet."""
    told = 0 if stop._link is None else stop._link.flag.saves_requested
    return stop._signal_saves + told > stop._handled_saves


if __name__ == "__main__":
    train.STOP.install()
    hold()
    sys.exit(train.main())
