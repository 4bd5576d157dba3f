"""Handle losses and gradients that are NaN or infinite.

A step with a non-finite loss or gradient is skipped and changes nothing. Several in a row mean that
the weights themselves are bad: training then rolls back to the newest checkpoint and continues with
the next batches instead of repeating those that led there. The second time it rolls back to the
checkpoint before. After that the run fails, since another machine would get the same result.
"""

from __future__ import annotations

import math

from spotd.wire import ROLLED_BACK, WARNING
from trainer.reference.run import Run

BAD_STEPS = 3  # consecutive non-finite steps before a rollback
MAX_ROLLBACKS = 2
SAVE_TIMEOUT_S = 600.0  # to wait for a running save, whose memory the restore needs


class DivergenceGuard:
    """Decides on skipped steps and rollbacks. Every rank has one, and all decide the same because
    their inputs are the same on all ranks."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._bad_steps = 0
        self._rollbacks = 0

    @property
    def is_finite(self) -> bool:
        """Whether the last step was finite, so that its state may be saved."""
        return self._bad_steps == 0

    def accept(self, step: int, loss: float, *, applied: bool) -> bool:
        """Record a step (from 1) with its loss over all ranks; False if training has to give up.

        `applied` is False if the update was skipped for a non-finite gradient.
        """
        if applied and math.isfinite(loss):
            self._bad_steps = 0
            return True
        self._bad_steps += 1
        if self._bad_steps == 1:
            kind = "gradient" if math.isfinite(loss) else "loss"
            self._warn(
                f"the {kind} of step {step} is not a finite number: nothing is learned from it"
            )
        if self._bad_steps < BAD_STEPS:
            return True
        self._bad_steps = 0
        self._rollbacks += 1
        return self._rollbacks <= MAX_ROLLBACKS and self._roll_back(step)

    def _roll_back(self, step: int) -> bool:
        """Restore an older checkpoint on every rank; False if there is none."""
        world, restored_step = self._run.world, -1
        self._run.link.report_busy(SAVE_TIMEOUT_S)
        try:
            if world.rank == 0:
                restored_step = self._restore(step)
        finally:
            restored_step = self._run.sync_outcome(restored_step)
        if restored_step >= 0:
            self._run.broadcast_state()
        return restored_step >= 0

    def _restore(self, step: int) -> int:
        """Restore on rank 0; return the step of the checkpoint, -1 if there is none."""
        run, checkpointer = self._run, self._run.checkpointer
        assert checkpointer is not None  # noqa: S101 - rank 0
        if not checkpointer.drain(SAVE_TIMEOUT_S):
            return -1
        restored = run.restore(self._rollbacks - 1)
        if restored is None:
            return -1
        message = f"back to the checkpoint of step {restored.step}, on with step {step + 1}"
        run.link.send(ROLLED_BACK, {"step": restored.step, "from_step": step})
        print(f"no finite number in {BAD_STEPS} steps: {message}", flush=True)
        return restored.step

    def _warn(self, text: str) -> None:
        if self._run.world.rank == 0:
            self._run.link.send(WARNING, {"text": text})
