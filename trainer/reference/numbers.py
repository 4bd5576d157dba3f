"""Losses and gradients that are no numbers: not learned from, never saved, gone back from.

A step whose loss or gradient is NaN or infinite changes nothing: its batch is passed over. Several
in a row say that the weights themselves have gone astray. Then training goes back to the newest
checkpoint, and not over the batches since that one again, which led there; the next time to the one
before. When that does not help either, nothing more is tried: the same program on another machine
would come to the same end.
"""

from __future__ import annotations

import math

from spotd.wire import ROLLED_BACK, WARNING
from trainer.reference.run import Run

PATIENCE = 3  # steps in a row
ROLL_BACKS = 2
SAVE_S = 600.0  # for a save under way, whose memory is needed


class Numbers:
    """Every rank has one, and all come to the same: what they judge by is the same for all."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._bad = 0
        self._rolled_back = 0

    @property
    def good(self) -> bool:
        """The last step was one to go back to."""
        return self._bad == 0

    def accept(self, step: int, loss: float, *, applied: bool) -> bool:
        """Take note of the step with this number (from 1), over all ranks. False: give up."""
        if applied and math.isfinite(loss):
            self._bad = 0
            return True
        self._bad += 1
        if self._bad == 1:
            what = "gradient" if math.isfinite(loss) else "loss"
            self._say(f"the {what} of step {step} is no finite number: nothing is learned from it")
        if self._bad < PATIENCE:
            return True
        self._bad = 0
        self._rolled_back += 1
        return self._rolled_back <= ROLL_BACKS and self._roll_back(step)

    def _roll_back(self, step: int) -> bool:
        """To the state of an older checkpoint, on every rank; False when there is none."""
        world, found = self._run.world, -1
        self._run.link.excuse(SAVE_S)
        try:
            if world.rank == 0:
                found = self._restore(step)
        finally:
            found = self._run.hear(found)
        if found >= 0:
            self._run.spread()
        return found >= 0

    def _restore(self, step: int) -> int:
        """The step of the checkpoint that it went back to; -1: to none. On rank 0 alone."""
        run, checkpointer = self._run, self._run.checkpointer
        assert checkpointer is not None  # noqa: S101 - rank 0
        if not checkpointer.drain(SAVE_S):
            return -1
        restored = run.restore(self._rolled_back - 1)
        if restored is None:
            return -1
        found = restored.step
        text = f"back to the checkpoint of step {found}, on with step {step + 1}"
        run.link.send(ROLLED_BACK, {"step": found, "from_step": step})
        print(f"no finite number in {PATIENCE} steps: {text}", flush=True)
        return found

    def _say(self, text: str) -> None:
        if self._run.world.rank == 0:
            self._run.link.send(WARNING, {"text": text})
