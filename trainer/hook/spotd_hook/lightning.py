"""Save and resume with Lightning's Trainer:

    Trainer(callbacks=[spotd_hook.lightning.Callback()])

Needs lightning 2.5 or 2.6, Python >= 3.10.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import callbacks
from lightning.pytorch.strategies import (
    DeepSpeedStrategy,
    FSDPStrategy,
    ModelParallelStrategy,
)
from torch import Tensor
from torch.utils.data import IterableDataset

from . import arguments, rng_state
from .checkpoint_files import collect_files, local_callbacks, restore_files
from .epoch_means import EpochMeans
from .objects import restore_types, stateful
from .program import Program
from .session import NextAction, Resumed, Session
from .weights import load_weights

# The program itself sets these.
_LEFT_OUT = ("hparams_name", "hyper_parameters", "datamodule_hparams_name")
_STATE, _METRICS, _MEANS, _PENDING = "lightning", "metrics", "means", "pending"
_FILES, _BEGIN, _LIMITS = "files", "begin", "limits"
_SHARDED = (DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy)
# Set up at the start of an epoch, which is not repeated where training continues in its middle.
_AT_EPOCH_START = (callbacks.GradientAccumulationScheduler, callbacks.StochasticWeightAveraging)
# Newer than the oldest Lightning.
_WEIGHT_AVERAGING: Any = getattr(callbacks, "WeightAveraging", ())


class Callback(callbacks.Callback):  # type: ignore[misc]
    """Saves what Lightning's own checkpoints contain, and the random generators.

    It saves at the job's interval, after the validation and the schedulers that belong to a batch,
    saves and exits before the machine ends, and makes `fit()` resume. Within an epoch it resumes
    exactly if the loader keeps a state, like torchdata's StatefulDataLoader; Lightning starts any
    other loader from its beginning.

    Each call of `fit()` is a training of its own, whose name is `name` for the first one, else its
    number in the order of the calls. On another machine the program runs from its beginning: a
    `fit()` that had ended gets its results back and does no step.

    The files of ModelCheckpoint, the best ones and the last, are in the job's checkpoints.
    `fit()` raises ValueError for an argument that cannot be honoured; `arguments` has the table.
    """

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._session: Session | None = None
        self._resumed: Resumed | None = None
        self._ended = False  # in an earlier run of the program
        self._rng: Any = None  # to be restored before the next batch
        self._rng_before: Any = None  # before the newest validation
        self._metrics_before: dict[str, Any] = {}  # that were logged before it
        self._epoch_rng: Any = None  # before the order of the resumed epoch is drawn
        self._trainer: Any = None
        self._means: EpochMeans  # of its fit loop
        self._loss: float | None = None
        self._first_step = self._global_step = 0  # of the trainer: at the begin, and now
        self._has_ended = False  # all of Lightning's own steps are done
        self._continues_epoch = False  # in its middle, and it is not set up yet
        self._is_swapped = False  # a validation uses averaged weights
        self._step_ended = False  # what belongs to it, as a validation, may follow
        self._repeats_validation = False  # the machine ended in the middle of it
        self._sanity_steps = 0  # of the trainer, while they are left out
        self._waiting_since_s = 0.0  # end of the last batch or validation

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Connect, now that Lightning has set up torch.distributed, if it does, and come first.

        Other callbacks' `on_fit_start` is for a state that is restored.
        """
        del pl_module
        if stage == "fit":
            Program.current()
            others = [one for one in trainer.callbacks if one is not self]
            trainer.callbacks = [self, *others]

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """The model is on its device by now; Lightning restores loops and optimizers next."""
        check_arguments(trainer, ranks=Program.current().ranks.size)
        self._wrap(trainer)
        self._has_ended = self._is_swapped = self._continues_epoch = False
        self._session = Session(self._collect, self._collect_own, name=self._name)
        self._name, self._rng = "", None
        self._step_ended = self._repeats_validation = False
        self._means.restore({})
        self._resumed = resumed = self._session.begin()
        self._ended = resumed is not None and resumed.ended
        if resumed is not None and resumed.weights is not None:
            load_weights(stateful({"model": pl_module}), resumed.weights)
            self._resumed = resumed = None
        if not self._session.ranks.rank:
            _warn(trainer)
        if resumed is not None:
            if self._ended:
                arguments.check_limits(_limits_of(trainer), resumed.shared[_LIMITS])
            restore_files(trainer, resumed.shared[_FILES], resumed.shared[_STATE]["callbacks"])
            self._first_step = resumed.shared[_BEGIN]["step"]
            connector = trainer._checkpoint_connector  # noqa: SLF001 - the public way needs a file
            connector._loaded_checkpoint = resumed.shared[_STATE]  # noqa: SLF001
            connector.restore_model()
            connector.restore_datamodule()
            connector.restore_callbacks()
            # Schedulers ask for what was logged at the last validation.
            logged = trainer._logger_connector._callback_metrics  # noqa: SLF001
            logged.update(resumed.shared[_METRICS])
            if not self._ended:
                self._means.restore(resumed.per_rank[_MEANS])
            self._rng, self._loss = resumed.per_rank["chance"], resumed.per_rank["loss"]
            self._repeats_validation = resumed.shared[_PENDING]["validation"]
            self._step_ended = self._repeats_validation
            # It would set back the progress of the validation.
            self._sanity_steps, trainer.num_sanity_val_steps = trainer.num_sanity_val_steps, 0

    def _wrap(self, trainer: Any) -> None:
        """Replace the ends of a batch and of an epoch in Lightning's loops, and a batch's begin.

        There is no event after a batch's validation and schedulers, and none before it is loaded.
        """
        if trainer is self._trainer:
            return
        self._trainer, loop = trainer, trainer.fit_loop
        self._means = means = EpochMeans(loop)
        end_batch, end_epoch = loop.epoch_loop.on_advance_end, loop.on_advance_end
        advance = loop.epoch_loop.advance

        def begin_batch(data_fetcher: Any) -> None:
            if not self._repeats_validation:
                self._restore_rng()  # a dataset may draw from it
            rng, self._epoch_rng = self._epoch_rng, None
            try:
                advance(data_fetcher)
            except StopIteration:
                if rng is None or data_fetcher.fetched:
                    raise
                # The loader's state was that of its end: its next iterator is the epoch's.
                rng_state.restore(rng)
                iter(data_fetcher)
                advance(data_fetcher)
            means.merge()

        def on_batch_end(data_fetcher: Any) -> None:
            self._set_up_epoch()
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
            inserted = means.insert()
            end_epoch()
            means.remove(inserted)
            self._complete_batch()

        loop.epoch_loop.on_advance_end, loop.on_advance_end = on_batch_end, on_epoch_end
        loop.epoch_loop.advance = begin_batch

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        del pl_module
        session, resumed = self._active_session, self._resumed
        session.stop.install()  # Lightning replaced the handlers
        self._global_step = trainer.global_step
        if resumed is None:
            self._first_step = trainer.global_step  # more than 0 with ckpt_path
        else:
            states = resumed.shared[_STATE]["optimizer_states"]
            for optimizer, state in zip(trainer.optimizers, states, strict=True):
                restore_types(optimizer, state)
        session.expect_steps(max(_total_steps(trainer) - self._first_step, 0))
        trainer.num_sanity_val_steps += self._sanity_steps
        self._sanity_steps = 0
        if self._ended:
            trainer.should_stop = True
        elif resumed is not None and _epoch_is_whole(trainer):
            _begin_epoch(trainer)
            self._means.restore({})
            self._epoch_rng = self._rng
            self._restore_rng()  # before the epoch's order is drawn
        elif resumed is not None:
            self._continues_epoch = True
        self._resumed = None
        self._check_data(trainer)
        session.reset_timers()
        self._waiting_since_s = time.monotonic()

    def _check_data(self, trainer: Any) -> None:
        """Warn of an IterableDataset whose loader keeps no state."""
        for loader in trainer.fit_loop._combined_loader.flattened:  # noqa: SLF001
            dataset = getattr(loader, "dataset", None)
            if isinstance(dataset, IterableDataset) and not hasattr(loader, "state_dict"):
                Program.current().warn_user(
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
        self._set_up_epoch()
        self._active_session.progress.add_data_wait(time.monotonic() - self._waiting_since_s)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        del pl_module, batch, batch_idx
        self._loss = _loss_of(outputs)
        if trainer.global_step != self._global_step:  # else gradients accumulate
            self._global_step = trainer.global_step
            self._active_session.count_step(self._loss)
            self._step_ended = True

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """A validation belongs to the batch before it."""
        del pl_module
        if self._session is not None and trainer.validating and self._step_ended:
            # Afterwards, to read them may compute means over all ranks.
            self._metrics_before = dict(trainer.callback_metrics)
            self._session.begin_evaluation(rng=self._rng_before)

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Averaged weights are swapped in after this."""
        del pl_module
        if self._evaluates_averaged(trainer):
            self._active_session.busy()

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        del pl_module, batch
        if not batch_idx and not dataloader_idx and self._evaluates_averaged(trainer):
            self._is_swapped = True
            self._active_session.idle(rng=self._rng_before)

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Averaged weights are swapped out after this."""
        del pl_module
        if self._evaluates_averaged(trainer):
            self._active_session.busy()
            self._is_swapped = False

    def on_validation_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        del trainer, args, kwargs
        if self._session is not None and self._session.leaves_evaluation():
            self._session.exit_saved()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        del trainer, pl_module
        if self._session is not None and self._session.evaluating:
            self._session.end_evaluation()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """All callbacks have ended the training, with files and averaged weights."""
        del trainer, pl_module
        self._active_session.busy()
        self._has_ended = True
        if self._ended:
            self._restore_rng()
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
        if ended:  # else gradients are accumulated, which nobody saves
            session.idle()

    def _evaluates_averaged(self, trainer: Any) -> bool:
        session = self._session
        is_own = session is not None and session.evaluating
        return is_own and any(isinstance(one, _WEIGHT_AVERAGING) for one in trainer.callbacks)

    def _swap(self, pl_module: Any) -> None:
        self._is_swapped = False
        for one in self._trainer.callbacks:
            if isinstance(one, _WEIGHT_AVERAGING):
                one._swap_models(pl_module)  # noqa: SLF001

    def _set_up_epoch(self) -> None:
        """Let callbacks do what they do at the start of an epoch that continues in its middle."""
        if not self._continues_epoch:
            return
        self._continues_epoch, trainer = False, self._trainer
        groups = [group for one in trainer.optimizers for group in one.param_groups]
        rates = [group["lr"] for group in groups]  # a scheduler that is created changes them
        for callback in trainer.callbacks:
            if isinstance(callback, _AT_EPOCH_START):
                callback.on_train_epoch_start(trainer, trainer.lightning_module)
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate

    def _restore_rng(self) -> None:
        if self._rng is not None:
            rng_state.restore(self._rng)
            self._rng = None

    @property
    def _active_session(self) -> Session:
        assert self._session is not None  # noqa: S101 - since on_fit_start
        return self._session

    def _collect(self) -> Any:
        trainer = self._trainer
        if self._is_swapped:  # the program ends with this save
            self._swap(trainer.lightning_module)
        connector = trainer._checkpoint_connector  # noqa: SLF001
        checkpoint = connector.dump_checkpoint(weights_only=False)
        for name in _LEFT_OUT:
            checkpoint.pop(name, None)
        evaluating = self._active_session.evaluating
        return {
            _STATE: checkpoint,
            _METRICS: self._metrics_before if evaluating else dict(trainer.callback_metrics),
            _PENDING: {"validation": evaluating},
            _FILES: collect_files(trainer, ended=self._has_ended),
            _BEGIN: {"step": self._first_step},
            _LIMITS: _limits_of(trainer),
        }

    def _collect_own(self) -> Any:
        session = self._active_session
        return {
            "chance": session.rng or rng_state.capture(),
            "loss": session.step_loss,
            _MEANS: self._means.collect(),
        }


def check_arguments(trainer: Any, *, ranks: int) -> None:
    """Raise ValueError, which names the argument, if one cannot be honoured."""
    owner = arguments.PL_TRAINER
    if isinstance(trainer.strategy, _SHARDED):
        raise arguments.refused(owner, "strategy", type(trainer.strategy).__name__)
    files = local_callbacks(trainer)
    if files and type(trainer.strategy.checkpoint_io) is not TorchCheckpointIO:
        raise arguments.refused(owner, "plugins", type(trainer.strategy.checkpoint_io).__name__)
    for callback in files:
        if callback.save_top_k == -1:
            raise arguments.refused(arguments.MODEL_CHECKPOINT, "save_top_k", -1)
    for callback in trainer.callbacks:
        name = f"lightning.pytorch.callbacks.{type(callback).__name__}"
        if name in (arguments.BATCH_SIZE_FINDER, arguments.LEARNING_RATE_FINDER):
            raise arguments.refused_owner(name)
    if trainer.world_size != ranks:
        raise ValueError(
            f"devices and num_nodes make {trainer.world_size} processes, and spotd_hook sees "
            f"{ranks}: start the program with torchrun, one process for each device"
        )


def _warn(trainer: Any) -> None:
    """Print a line for each argument that has no effect."""
    for callback in trainer.checkpoint_callbacks:
        if getattr(callback, "save_on_exception", False):
            arguments.warn(arguments.MODEL_CHECKPOINT, {"save_on_exception": True})
        if isinstance(callback, callbacks.OnExceptionCheckpoint):
            arguments.warn(arguments.ON_EXCEPTION, {"dirpath": callback.dirpath})


def _limits_of(trainer: Any) -> dict[str, float]:
    """Return the ends of a training; -1 where there is none."""
    epochs = trainer.fit_loop.max_epochs
    return {"max_steps": trainer.max_steps, "max_epochs": -1 if epochs is None else epochs}


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
