"""Saving and resuming for Lightning's Trainer, in one line:

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
from .session import Next, Resumed, Session
from .weights import give_weights

_LEFT_OUT = ("hparams_name", "hyper_parameters", "datamodule_hparams_name")  # the program has them
_STATE = "lightning"


class Callback(callbacks.Callback):  # type: ignore[misc]
    """Saves what Lightning's own checkpoints have, and the random generators, by the cadence of
    the job; leaves before the machine goes; `fit()` goes on where the job was, and ends the program
    where it is finished. In the middle of an epoch it goes on exactly where the loader keeps a
    state, as torchdata's StatefulDataLoader does; Lightning begins any other one anew. What comes
    after `fit()` is not repeated on another machine."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._resumed: Resumed | None = None
        self._trainer: Any = None
        self._since = 0.0  # the last batch's end, or that of the validation after it

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """After the model is where it trains; Lightning restores loops and optimizers next."""
        self._trainer = trainer
        self._session = Session(self._collect)
        self._resumed = self._session.begin()
        if self._resumed is not None and self._resumed.weights is not None:
            give_weights(stateful({"model": pl_module}), self._resumed.weights)
            self._resumed = None
        if self._resumed is not None:
            connector = trainer._checkpoint_connector  # noqa: SLF001 - a file would be the other way
            connector._loaded_checkpoint = self._resumed.shared[_STATE]  # noqa: SLF001
            connector.restore_model()
            connector.restore_datamodule()
            connector.restore_callbacks()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        del pl_module
        session = self._asked
        session.stop.install()  # Lightning has put its own before it
        session.progress.steps = max(trainer.max_steps, 0)
        session.rest()
        self._since = time.monotonic()

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        del trainer, pl_module, batch, batch_idx
        self._asked.progress.waited(time.monotonic() - self._since)
        if self._resumed is not None:
            rng_state.give(self._resumed.own["chance"])
            self._resumed = None

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        del pl_module, batch, batch_idx
        if trainer.global_step != self._asked.step:  # else gradients are being accumulated
            self._after(_loss_of(outputs))
        self._since = time.monotonic()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Is no wait for data."""
        del trainer, pl_module
        self._since = time.monotonic()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        del trainer, pl_module
        self._asked.finish()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        del trainer, pl_module, exception
        if self._session is not None:
            self._session.close()

    def _after(self, loss: float | None) -> None:
        session = self._asked
        match session.after(loss):
            case Next.FENCED:
                session.leave_fenced()
            case Next.LEAVE:
                session.leave()
            case Next.SAVE:
                session.save()

    @property
    def _asked(self) -> Session:
        assert self._session is not None  # noqa: S101 - since on_fit_start
        return self._session

    def _collect(self) -> tuple[Any, Any]:
        connector = self._trainer._checkpoint_connector  # noqa: SLF001
        whole = connector.dump_checkpoint(weights_only=False)
        for name in _LEFT_OUT:
            whole.pop(name, None)
        return {_STATE: whole}, {"chance": rng_state.take()}


def _loss_of(outputs: Any) -> float | None:
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    return float(loss.detach()) if isinstance(loss, Tensor) and loss.numel() == 1 else None
