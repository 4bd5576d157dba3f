"""Save and resume with Lightning's Trainer:

    Trainer(callbacks=[spotd_hook.lightning.Callback()])

Needs lightning 2.5 or 2.6, Python >= 3.10.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import callbacks
from torch import Tensor
from torch.utils.data import IterableDataset

from . import rng_state
from .objects import stateful
from .program import Program
from .session import NextAction, Resumed, Session
from .weights import load_weights

# The program itself sets these.
_LEFT_OUT = ("hparams_name", "hyper_parameters", "datamodule_hparams_name")
_STATE, _METRICS, _PENDING = "lightning", "metrics", "pending"


class Callback(callbacks.Callback):  # type: ignore[misc]
    """Saves what Lightning's own checkpoints contain, and the random generators.

    It saves at the job's interval, after the validation and the schedulers that belong to a batch,
    saves and exits before the machine ends, and makes `fit()` resume. Within an epoch it resumes
    exactly if the loader keeps a state, like torchdata's StatefulDataLoader; Lightning starts any
    other loader from its beginning.

    Each call of `fit()` is a training of its own, whose name is `name` for the first one, else its
    number in the order of the calls. On another machine the program runs from its beginning: a
    `fit()` that had ended gets its results back and does no step.

    Raises ValueError for a ModelCheckpoint whose files another machine would miss.
    """

    def __init__(self, name: str = "") -> None:
        self._name, self._program = name, Program.current()
        self._session: Session | None = None
        self._resumed: Resumed | None = None
        self._ended = False  # in an earlier run of the program
        self._rng: Any = None  # to be restored before the next batch
        self._rng_before: Any = None  # before the newest validation
        self._trainer: Any = None
        self._loss: float | None = None
        self._step_ended = False  # what belongs to it, as a validation, may follow
        self._repeats_validation = False  # the machine ended in the middle of it
        self._waiting_since_s = 0.0  # end of the last batch or validation

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """The model is on its device by now; Lightning restores loops and optimizers next."""
        _check_callbacks(trainer)
        self._wrap(trainer)
        self._session = Session(self._collect, name=self._name)
        self._name, self._rng = "", None
        self._step_ended = self._repeats_validation = False
        self._resumed = resumed = self._session.begin()
        self._ended = resumed is not None and resumed.ended
        if resumed is not None and resumed.weights is not None:
            load_weights(stateful({"model": pl_module}), resumed.weights)
            self._resumed = resumed = None
        if resumed is not None:
            connector = trainer._checkpoint_connector  # noqa: SLF001 - the public way needs a file
            connector._loaded_checkpoint = resumed.shared[_STATE]  # noqa: SLF001
            connector.restore_model()
            connector.restore_datamodule()
            connector.restore_callbacks()
            # Schedulers ask for what was logged at the last validation.
            logged = trainer._logger_connector._callback_metrics  # noqa: SLF001
            logged.update(resumed.shared[_METRICS])
            self._rng, self._loss = resumed.per_rank["chance"], resumed.per_rank["loss"]
            self._repeats_validation = resumed.shared[_PENDING]["validation"]
            self._step_ended = self._repeats_validation

    def _wrap(self, trainer: Any) -> None:
        """Replace the ends of a batch and of an epoch in Lightning's loops.

        There is no event after a batch's validation and schedulers.
        """
        if trainer is self._trainer:
            return
        self._trainer, loop = trainer, trainer.fit_loop
        end_batch, end_epoch = loop.epoch_loop.on_advance_end, loop.on_advance_end

        def on_batch_end(data_fetcher: Any) -> None:
            batches = loop.epoch_loop
            no_batch, batches._skip_next_val = batches._skip_next_val, False  # noqa: SLF001
            if self._repeats_validation:  # there was no batch since the resume
                self._repeats_validation = batches.val_loop.restarting = False
                self._restore_rng()
                self._active_session.resume_step(self._loss)
            elif no_batch:
                return  # its validation was done before
            if batches._should_check_val_fx(data_fetcher):  # noqa: SLF001
                self._rng_before = rng_state.capture()  # its loader draws from it already
            end_batch(data_fetcher)
            if not batches.batch_progress.is_last_batch:
                self._complete_batch()

        def on_epoch_end() -> None:
            # Else schedulers are left out at the end of an epoch that was interrupted.
            loop._restarting = False  # noqa: SLF001
            end_epoch()
            self._complete_batch()

        loop.epoch_loop.on_advance_end, loop.on_advance_end = on_batch_end, on_epoch_end

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        del pl_module
        session = self._active_session
        session.stop.install()  # Lightning replaced the handlers
        session.expect_steps(_total_steps(trainer))
        if self._ended:
            trainer.should_stop = True
        elif self._resumed is not None and _epoch_is_whole(trainer):
            _begin_epoch(trainer)
            self._restore_rng()  # before the epoch's order is drawn
        self._resumed = None
        self._check_data(trainer)
        session.reset_timers()
        self._waiting_since_s = time.monotonic()

    def _check_data(self, trainer: Any) -> None:
        """Warn of an IterableDataset whose loader keeps no state."""
        for loader in trainer.fit_loop._combined_loader.flattened:  # noqa: SLF001
            dataset = getattr(loader, "dataset", None)
            if isinstance(dataset, IterableDataset) and not hasattr(loader, "state_dict"):
                self._program.warn_user(
                    f"Lightning begins to read {type(dataset).__name__} anew after a resume: if "
                    "this machine ends within an epoch, or each pass of the dataset goes on where "
                    "the last one ended, the batches after that are not those of an uninterrupted "
                    "training. Use torchdata's StatefulDataLoader"
                )

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        del trainer, pl_module, batch, batch_idx
        self._active_session.busy()
        self._active_session.progress.add_data_wait(time.monotonic() - self._waiting_since_s)
        self._restore_rng()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        del pl_module, batch, batch_idx
        self._loss = _loss_of(outputs)
        if trainer.global_step != self._active_session.step:  # else gradients accumulate
            self._active_session.count_step(self._loss)
            self._step_ended = True

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """A validation belongs to the batch before it."""
        del pl_module
        if self._session is not None and trainer.validating and self._step_ended:
            self._session.begin_evaluation(rng=self._rng_before)

    def on_validation_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        del trainer, args, kwargs
        if self._session is not None and self._session.leaves_evaluation():
            self._session.exit_saved()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        del trainer, pl_module
        if self._session is not None and self._session.evaluating:
            self._session.end_evaluation()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        del trainer, pl_module
        if not self._ended:
            self._active_session.busy()
            self._active_session.finish()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Where the training had ended before, Lightning has neither started nor ended it."""
        del pl_module
        if self._ended:
            self._restore_rng()
            _write_last_checkpoint(trainer)
            self._active_session.finish()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        del trainer, pl_module, exception
        if self._session is not None:
            self._session.fail()

    def _complete_batch(self) -> None:
        """Save or leave after a batch with all that belongs to it, if it was a step."""
        session, ended = self._active_session, self._step_ended
        self._waiting_since_s = time.monotonic()
        self._step_ended = False
        action = session.decide() if ended else NextAction.TRAIN
        if action is NextAction.FENCED:
            session.exit_fenced()
        if action is not NextAction.TRAIN and not self._trainer.fit_loop.done:
            if action is NextAction.LEAVE:
                session.exit_saved()
            session.save()
        session.idle()

    def _restore_rng(self) -> None:
        if self._rng is not None:
            rng_state.restore(self._rng)
            self._rng = None

    @property
    def _active_session(self) -> Session:
        assert self._session is not None  # noqa: S101 - since on_fit_start
        return self._session

    def _collect(self) -> tuple[Any, Any]:
        connector = self._trainer._checkpoint_connector  # noqa: SLF001
        checkpoint = connector.dump_checkpoint(weights_only=False)
        for name in _LEFT_OUT:
            checkpoint.pop(name, None)
        session = self._active_session
        shared = {
            _STATE: checkpoint,
            _METRICS: dict(self._trainer.callback_metrics),
            _PENDING: {"validation": session.evaluating},
        }
        return shared, {"chance": session.rng or rng_state.capture(), "loss": session.step_loss}


def _check_callbacks(trainer: Any) -> None:
    """Raise ValueError for a ModelCheckpoint that keeps more than the newest state."""
    for one in trainer.checkpoint_callbacks:
        more = one.monitor is not None or one.save_top_k not in (0, 1) or one.save_last
        if more:
            raise ValueError(
                "ModelCheckpoint with monitor, save_top_k or save_last keeps files that another "
                "machine would miss: leave it out beside spotd_hook.lightning.Callback, or leave "
                "the callback out and let spotd save the folder: spotd: {checkpoint: {mode: "
                f"directory, path: {one.dirpath or trainer.default_root_dir}}}}}"
            )


def _write_last_checkpoint(trainer: Any) -> None:
    """Write the file of Lightning's default ModelCheckpoint, which another machine had."""
    for one in trainer.checkpoint_callbacks:
        if one.best_model_path and not Path(one.best_model_path).exists():
            trainer.save_checkpoint(one.best_model_path)


def _epoch_is_whole(trainer: Any) -> bool:
    """Whether the restored state is that of the end of an epoch."""
    progress = trainer.fit_loop.epoch_progress.total
    return bool(progress.ready == progress.completed > 0)


def _begin_epoch(trainer: Any) -> None:
    """Make Lightning begin the next epoch as it does in a run that was not interrupted.

    By itself it creates the loader's iterator earlier, without the loader's state, and where
    `max_steps` is given it ends the whole epoch once more.
    """
    loop = trainer.fit_loop
    states, loop._combined_loader_states_to_load = (  # noqa: SLF001
        loop._combined_loader_states_to_load,  # noqa: SLF001
        [],
    )
    if states:
        loop._combined_loader._load_state_dicts(states)  # noqa: SLF001
    batches = loop.epoch_loop
    for one in (loop, batches, batches.val_loop, batches.automatic_optimization):
        one._restarting = one._resuming_from_checkpoint = False  # noqa: SLF001


def _total_steps(trainer: Any) -> int:
    """Return max_steps, or the steps of max_epochs; 0 where neither ends the run."""
    total = trainer.estimated_stepping_batches
    return int(total) if 0 < total < float("inf") else 0


def _loss_of(outputs: Any) -> float | None:
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    return float(loss.detach()) if isinstance(loss, Tensor) and loss.numel() == 1 else None
