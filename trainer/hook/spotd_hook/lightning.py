"""Save and resume with Lightning's Trainer:

    Trainer(callbacks=[spotd_hook.lightning.Callback()])

Needs lightning 2.5 or 2.6, Python >= 3.10.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import callbacks
from torch import Tensor

from . import rng_state
from .objects import stateful
from .session import NextAction, Resumed, Session
from .weights import load_weights

# The program itself sets these.
_LEFT_OUT = ("hparams_name", "hyper_parameters", "datamodule_hparams_name")
_STATE = "lightning"


class Callback(callbacks.Callback):  # type: ignore[misc]
    """Saves what Lightning's own checkpoints contain, and the random generators.

    It saves at the job's interval, saves and exits before the machine ends, makes `fit()` resume,
    and ends the program if the job is finished. Within an epoch it resumes exactly if the loader
    keeps a state, like torchdata's StatefulDataLoader; Lightning starts any other loader from its
    beginning. Code after `fit()` is not repeated on another machine.
    """

    def __init__(self) -> None:
        self._session: Session | None = None
        self._resumed: Resumed | None = None
        self._trainer: Any = None
        self._waiting_since_s = 0.0  # end of the last batch or validation

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """The model is on its device by now; Lightning restores loops and optimizers next."""
        self._trainer = trainer
        self._session = Session(self._collect)
        self._resumed = self._session.begin()
        if self._resumed is not None and self._resumed.weights is not None:
            load_weights(stateful({"model": pl_module}), self._resumed.weights)
            self._resumed = None
        if self._resumed is not None:
            connector = trainer._checkpoint_connector  # noqa: SLF001 - the public way needs a file
            connector._loaded_checkpoint = self._resumed.shared[_STATE]  # noqa: SLF001
            connector.restore_model()
            connector.restore_datamodule()
            connector.restore_callbacks()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        del pl_module
        session = self._active_session
        session.stop.install()  # Lightning replaced the handlers
        session.progress.steps = _total_steps(trainer)
        session.reset_timers()
        self._waiting_since_s = time.monotonic()

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        del trainer, pl_module, batch, batch_idx
        self._active_session.progress.add_data_wait(time.monotonic() - self._waiting_since_s)
        if self._resumed is not None:
            rng_state.restore(self._resumed.per_rank["chance"])
            self._resumed = None

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        del pl_module, batch, batch_idx
        if trainer.global_step != self._active_session.step:  # else gradients accumulate
            self._after(_loss_of(outputs))
        self._waiting_since_s = time.monotonic()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Do not count the validation as a wait for data."""
        del trainer, pl_module
        self._waiting_since_s = time.monotonic()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        del trainer, pl_module
        self._active_session.finish()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        del trainer, pl_module, exception
        if self._session is not None:
            self._session.close()

    def _after(self, loss: float | None) -> None:
        session = self._active_session
        match session.after_step(loss):
            case NextAction.FENCED:
                session.exit_fenced()
            case NextAction.LEAVE:
                session.exit_saved()
            case NextAction.SAVE:
                session.save()

    @property
    def _active_session(self) -> Session:
        assert self._session is not None  # noqa: S101 - since on_fit_start
        return self._session

    def _collect(self) -> tuple[Any, Any]:
        connector = self._trainer._checkpoint_connector  # noqa: SLF001
        checkpoint = connector.dump_checkpoint(weights_only=False)
        for name in _LEFT_OUT:
            checkpoint.pop(name, None)
        return {_STATE: checkpoint}, {"chance": rng_state.capture()}


def _total_steps(trainer: Any) -> int:
    """Return max_steps, or the steps of max_epochs; 0 where neither ends the run."""
    total = trainer.estimated_stepping_batches
    return int(total) if 0 < total < float("inf") else 0


def _loss_of(outputs: Any) -> float | None:
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    return float(loss.detach()) if isinstance(loss, Tensor) and loss.numel() == 1 else None
