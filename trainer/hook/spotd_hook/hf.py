"""Save and resume with transformers' Trainer:

    trainer.add_callback(spotd_hook.hf.Callback(trainer))

Needs transformers 4.57 to 5, Python >= 3.10.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers.trainer
from torch import Tensor
from transformers.trainer_callback import ExportableState, TrainerCallback, TrainerState
from transformers.trainer_utils import TrainOutput

from . import rng_state
from .data_position import DataPosition, ReadWatch, Rest, has_position
from .objects import Stateful, stateful
from .program import Program
from .session import NextAction, Resumed, Session
from .weights import load_weights

_STATE = "trainer_state.json"  # the name in transformers


class Callback(TrainerCallback):  # type: ignore[misc]
    """Replaces the trainer's own checkpoints by those of the job.

    It saves what the trainer's own checkpoints contain, at the job's interval and where the
    trainer's arguments ask for a save: model, optimizer, scheduler, scaler, random generators, the
    trainer's and its callbacks' state, and the best model. A step is saved whole, after its log,
    its evaluation and all callbacks. It saves and exits before the machine ends, and makes
    `trainer.train()` resume. Add it before training starts.

    Each call of `train()` is a training of its own, whose name is `name` for the first one, else
    its number in the order of the calls. On another machine the program runs from its beginning: a
    `train()` that had ended loads its results and returns at once.

    Raises ValueError for an argument of the trainer that cannot be honoured.
    """

    def __init__(self, trainer: Any, name: str = "") -> None:
        _check_arguments(trainer.args)
        self._trainer, self._name = trainer, name
        self._program = Program.current()
        self._session: Session | None = None
        self._objects: dict[str, Stateful] = {}
        self._best: Any = None  # the best model's state, where the trainer looks for one
        self._loss: float | Tensor = 0.0  # of the micro-batches of the step
        self._tr_loss: Tensor | None = None  # the trainer's sum since its last log
        self._step_ended = self._epoch_ended = False  # the step is not yet whole
        self._save_wanted = False  # by the trainer's arguments
        self._saved_step = 0
        self._output: TrainOutput | None = None
        self._waiting_since_s = 0.0  # end of the last step and of work after it
        self._resumed: Resumed | None = None
        self._rng: Any = None  # to be restored before the next step
        self._carried: Tensor | None = None  # the restored sum of losses, until the next step
        self._step_values: dict[str, Any] = {}  # of the last step, for an evaluation repeated
        self._pending: dict[str, Any] | None = None  # while an evaluation of a step runs
        self._stops_at_once = False  # an evaluation that was repeated ended the training
        self._position: DataPosition | None = None  # in data that has no order of its own
        self._watch: ReadWatch | None = None  # of such data without a state
        self._wrap()

    def _wrap(self) -> None:
        """Replace the methods of the trainer that save, load and train."""
        trainer = self._trainer
        self._train: Callable[..., Any] = trainer.train
        self._training_step: Callable[..., Tensor] = trainer.training_step
        self._load: Callable[..., Any] = trainer._load_from_checkpoint  # noqa: SLF001
        self._log_and_evaluate = trainer._maybe_log_save_evaluate  # noqa: SLF001
        trainer.train = self._train_resumed
        trainer.training_step = self._training_step_with_loss
        trainer._load_from_checkpoint = self._load_unless_resumed  # noqa: SLF001
        trainer._maybe_log_save_evaluate = self._complete_step  # noqa: SLF001
        trainer._save_checkpoint = self._on_trainer_save  # noqa: SLF001
        trainer._load_best_model = self._load_best  # noqa: SLF001
        self._evaluate: Callable[..., Any] = trainer.evaluate
        trainer.evaluate = self._evaluate_whole
        self._wrap_data()

    def _wrap_data(self) -> None:
        """Replace the methods of the trainer that read its training data."""
        trainer = self._trainer
        self._get_loader: Callable[..., Any] = trainer.get_train_dataloader
        trainer.get_train_dataloader = self._get_positioned_loader
        self._get_batches: Callable[..., Any] = trainer.get_batch_samples
        trainer.get_batch_samples = self._read_batches
        # Before transformers 5 there is no such method: see `_get_positioned_loader`.
        self._begin_state = getattr(trainer, "_init_training_state", None)
        if self._begin_state is not None:
            trainer._init_training_state = self._begin_state_resumed  # noqa: SLF001

    # --- replacements of the trainer's methods

    def _train_resumed(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """`train`, from where this training stands in the job's newest checkpoint."""
        session = self._session = Session(self._collect, name=self._name)
        self._name, self._best, self._output = "", None, None
        self._step_ended, self._stops_at_once, self._carried = False, False, None
        try:
            self._resumed = session.begin()
            if self._resumed is not None and self._resumed.ended:
                self._output = self._restore_results(self._resumed)
            elif self._resumed is None or self._resumed.weights is not None:
                self._output = self._train(resume_from_checkpoint, *args, **kwargs)
            else:
                with (
                    tempfile.TemporaryDirectory(prefix="spotd-resume-") as folder,
                    self._skipping_batches(),
                ):
                    text = json.dumps(self._resumed.shared["trainer"])
                    (Path(folder) / _STATE).write_text(text, encoding="utf-8")
                    self._output = self._train(folder, *args, **kwargs)
            self._best = None  # the model is the best one by now
            session.busy()
            session.finish()
        except BaseException:
            session.fail()
            raise
        return self._output

    def _training_step_with_loss(self, *args: Any, **kwargs: Any) -> Tensor:
        if self._position is not None:
            self._position.count(args[1] if len(args) > 1 else kwargs["inputs"])
        loss = self._training_step(*args, **kwargs)
        self._loss = self._loss + loss.detach()
        return loss

    def _load_unless_resumed(self, *args: Any, **kwargs: Any) -> Any:
        """Skip loading from a folder: the state is restored in `on_train_begin`."""
        return None if self._resumed is not None else self._load(*args, **kwargs)

    def _get_positioned_loader(self, *args: Any, **kwargs: Any) -> Any:
        """`get_train_dataloader`; where a batch's number does not find it again, its position in
        the data is saved."""
        loader = self._get_loader(*args, **kwargs)
        self._position = self._watch = None
        if not has_position(loader):
            return loader
        self._position = position = DataPosition(loader, self._program.warn_user)
        if not position.keeps_state and not self._trainer.args.ignore_data_skip:
            self._watch = ReadWatch(position.name, self._program.warn_user)
            if self._begin_state is None and not _has_length(loader):
                self._program.warn_user(
                    f"with transformers before 5, training on {position.name} goes on with other "
                    "batches if the machine ends in a later pass over it: update transformers"
                )
        resumed = self._resumed
        if resumed is not None and not self._trainer.args.ignore_data_skip:
            saved = resumed.per_rank.get("data")
            if saved is not None:
                position.resume(saved)
        return loader

    def _begin_state_resumed(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """`_init_training_state`: the passes and the batches of the next one trained on.

        Of a loader without a length, the trainer takes all steps for those of one pass.
        """
        assert self._begin_state is not None  # noqa: S101 - else it is not replaced
        passes, batches = self._begin_state(*args, **kwargs)
        position = self._position
        if position is None or not position.returns or _has_length(position.loader):
            return passes, batches
        return position.reached

    @contextmanager
    def _skipping_batches(self) -> Iterator[None]:
        """Replace the function by which the trainer skips batches after a resume."""
        transformers.trainer.skip_first_batches = self._skip_batches
        try:
            yield
        finally:
            transformers.trainer.skip_first_batches = _SKIP

    def _skip_batches(self, loader: Any, count: int) -> Any:
        """accelerate's `skip_first_batches`, for the pass that was interrupted."""
        position = self._position
        if position is None or not position.is_returning:
            return _SKIP(loader, count)
        return Rest(position)

    def _read_batches(self, *args: Any, **kwargs: Any) -> Any:
        if self._watch is None:
            return self._get_batches(*args, **kwargs)
        return self._watch.read(self._get_batches, *args, **kwargs)

    def _complete_step(
        self, tr_loss: Tensor, grad_norm: Any, model: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Log, evaluate, and save: after that a step is whole.

        The trainer calls this after each step, and again at the end of an epoch, to which the
        epoch's last step belongs.
        """
        if self._stops_at_once:
            return
        if self._carried is not None:  # the first step since the resume
            tr_loss += self._carried.to(tr_loss.device)
            self._carried = None
        self._tr_loss = tr_loss
        self._step_values = {
            "grad_norm": None if grad_norm is None else float(grad_norm),
            "learning_rate": kwargs.get("learning_rate"),
        }
        self._log_and_evaluate(tr_loss, grad_norm, model, *args, **kwargs)
        state, control = self._trainer.state, self._trainer.control
        last_of_epoch = not (state.epoch or 0.5) % 1
        if self._step_ended and last_of_epoch and not self._epoch_ended:
            return
        if self._step_ended:
            self._step_ended = False
            self._after_step(
                last=state.global_step >= state.max_steps or control.should_training_stop
            )
        self._start_wait()
        self._active_session.idle()

    def _evaluate_whole(self, *args: Any, **kwargs: Any) -> Any:
        """`evaluate`; one that belongs to a step may be interrupted, and is repeated then."""
        session = self._session
        if session is None or not self._step_ended or session.evaluating:
            return self._evaluate(*args, **kwargs)
        self._pending = {**self._step_values, "save": bool(self._trainer.control.should_save)}
        session.begin_evaluation()
        metrics = self._evaluate(*args, **kwargs)
        session.end_evaluation()
        self._pending = None
        return metrics

    def _repeat_evaluation(self, resumed: Resumed) -> None:
        """Evaluate where the machine ended in an evaluation, before the next step."""
        trainer, pending = self._trainer, resumed.shared["pending"]
        control, session = trainer.control, self._active_session
        rng_state.restore(resumed.per_rank["chance"])
        control.should_log, control.should_evaluate = False, True
        control.should_save = pending["save"]
        self._step_ended = self._epoch_ended = True
        session.resume_step(resumed.per_rank["loss"])
        tr_loss = resumed.shared["sums"]["tr_loss"].to(trainer.args.device)
        self._carried = None
        self._complete_step(
            tr_loss,
            pending["grad_norm"],
            trainer.model_wrapped,
            None,  # no trial of a search
            trainer.state.epoch,
            None,  # no keys to ignore
            time.time(),
            learning_rate=pending["learning_rate"],
        )
        self._rng, self._carried = rng_state.capture(), tr_loss
        if trainer.control.should_training_stop:
            self._stops_at_once = True
            trainer.get_batch_samples = lambda *_: ([], None)

    def _on_trainer_save(self, *_: Any) -> None:
        """Note that the trainer's arguments ask for a save, and which model is the best."""
        trainer, state = self._trainer, self._trainer.state
        self._save_wanted = True
        if state.best_global_step and state.best_global_step == state.global_step:
            run_folder = trainer._get_output_dir(trial=None)  # noqa: SLF001
            state.best_model_checkpoint = os.path.join(  # noqa: PTH118 - as the trainer writes it
                run_folder, f"checkpoint-{state.best_global_step}"
            )
            if trainer.args.load_best_model_at_end:
                self._best = _copied(self._objects["model"].state_dict())

    def _load_best(self) -> None:
        """Load the best model, and write it where the trainer's state says that it is."""
        trainer = self._trainer
        if self._best is not None:
            self._objects["model"].load_state_dict(self._best)
            trainer.save_model(trainer.state.best_model_checkpoint)

    # --- events

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        del args, control
        trainer, resumed = self._trainer, self._resumed
        self._objects = self._stateful({name: kwargs[name] for name in _NAMES})
        self._active_session.expect_steps(state.max_steps)
        if resumed is not None and resumed.weights is not None:
            load_weights(self._objects, resumed.weights)
            self._resumed = resumed = None
        if resumed is not None:
            for name, obj in self._objects.items():
                obj.load_state_dict(resumed.shared[name])
            sums = resumed.shared["sums"]
            trainer._total_loss_scalar = sums["total_loss"]  # noqa: SLF001
            trainer._globalstep_last_logged = sums["logged_step"]  # noqa: SLF001
            trainer._initial_global_step = 0  # noqa: SLF001 - its means are of the whole training
            self._restore_callbacks(resumed)
            self._rng, self._carried = resumed.per_rank["chance"], sums["tr_loss"]
            if resumed.shared["pending"] is not None:
                self._repeat_evaluation(resumed)
        self._resumed = None
        self._active_session.reset_timers()
        self._start_wait()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The order of an epoch is drawn after this."""
        del args, control, kwargs
        self._epoch_ended = False
        is_whole, position = not (state.epoch or 0) % 1, self._position
        if position is None:
            if is_whole:
                self._restore_rng()
            return
        if self._watch is not None:
            self._watch.begin_pass()
        if position.returns and not (is_whole and _has_length(position.loader)):
            position.go_back()
            return
        if position.returns:
            position.pass_over()
        if is_whole or position.has_begun:
            self._restore_rng()
        position.begin_pass()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Within an epoch, its order was drawn again and its first batches were skipped by now.

        All batches of the step have been loaded.
        """
        del args, state, control, kwargs
        self._active_session.busy()
        self._active_session.progress.add_data_wait(time.monotonic() - self._waiting_since_s)
        self._restore_rng()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        del args, state, control, kwargs
        self._step_ended, self._save_wanted = True, False
        if self._position is not None:
            self._position.end_step()
        loss, self._loss = self._loss, 0.0
        self._active_session.count_step(float(loss))

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        del args, state, control, kwargs
        session = self._session
        if session is not None and session.leaves_evaluation():
            session.exit_saved()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        del args, state, control, kwargs
        self._epoch_ended = True

    # --- internal

    def _after_step(self, *, last: bool) -> None:
        session, wanted = self._active_session, self._save_wanted
        next_action = session.decide()
        if next_action is NextAction.FENCED:
            session.exit_fenced()
        elif last:
            return  # the results follow
        elif next_action is NextAction.LEAVE:
            session.exit_saved()
        elif next_action is NextAction.SAVE or wanted:
            session.save("" if next_action is NextAction.SAVE else "program")

    @property
    def _active_session(self) -> Session:
        assert self._session is not None  # noqa: S101 - since `train` was called
        return self._session

    def _start_wait(self) -> None:
        """Start to measure the wait for the next batches."""
        self._waiting_since_s = time.monotonic()

    def _restore_rng(self) -> None:
        if self._rng is not None:
            rng_state.restore(self._rng)
            self._rng = None

    def _stateful(self, objects: dict[str, Any]) -> dict[str, Stateful]:
        scaler = getattr(self._trainer.accelerator, "scaler", None)
        return stateful(objects if scaler is None else {**objects, "scaler": scaler})

    def _collect(self) -> tuple[Any, Any]:
        trainer = self._trainer
        trainer.store_flos()
        shared: dict[str, Any] = {
            name: dict(obj.state_dict()) for name, obj in self._objects.items()
        }
        shared["sums"] = {
            "tr_loss": torch.zeros(()) if self._tr_loss is None else self._tr_loss.detach().cpu(),
            "total_loss": trainer._total_loss_scalar,  # noqa: SLF001
            "logged_step": trainer._globalstep_last_logged,  # noqa: SLF001
        }
        shared["best"] = self._best or {}
        shared["pending"] = self._pending
        shared["output"] = None if self._output is None else list(self._output)
        session = self._active_session
        per_rank = {"chance": session.rng or rng_state.capture(), "loss": session.step_loss}
        per_rank["data"] = None if self._position is None else self._position.state()
        return {**shared, "trainer": self._trainer_state()}, per_rank

    def _restore_results(self, resumed: Resumed) -> TrainOutput:
        """Load what a training that has ended left: the model and the trainer's state."""
        trainer, shared = self._trainer, resumed.shared
        stateful({"model": trainer.model})["model"].load_state_dict(shared["model"])
        trainer.state = TrainerState(**shared["trainer"])
        trainer.callback_handler.model = trainer.model
        best = trainer.state.best_model_checkpoint
        if trainer.args.load_best_model_at_end and best is not None:
            trainer.save_model(best)  # the model has its weights already
        rng_state.restore(resumed.per_rank["chance"])
        return TrainOutput(*shared["output"])

    def _restore_callbacks(self, resumed: Resumed) -> None:
        """Set the state of the trainer's callbacks, such as the patience of early stopping."""
        trainer, saved = self._trainer, resumed.shared["trainer"]
        trainer.state.best_model_checkpoint = saved["best_model_checkpoint"]
        self._best = resumed.shared["best"] or None
        for name, states in saved["stateful_callbacks"].items():
            callbacks = [
                one for one in trainer.callback_handler.callbacks if type(one).__name__ == name
            ]
            for callback, state in zip(callbacks, _listed(states), strict=False):
                for attribute, value in state.get("attributes", {}).items():
                    setattr(callback, attribute, value)

    def _trainer_state(self) -> dict[str, Any]:
        """Return the trainer's state in the format of its own checkpoints."""
        trainer = self._trainer
        state, objects = trainer.state, dict[str, Any]()
        for obj in [*trainer.callback_handler.callbacks, trainer.control]:
            if isinstance(obj, ExportableState):
                name, previous = type(obj).__name__, objects.get(type(obj).__name__)
                objects[name] = (
                    obj.state() if previous is None else [*_listed(previous), obj.state()]
                )
        state.stateful_callbacks = objects
        data: dict[str, Any] = json.loads(json.dumps(asdict(state)))
        return data


_SKIP = transformers.trainer.skip_first_batches
_NAMES = ("model", "optimizer", "lr_scheduler")
# Arguments that have to do with the trainer's own checkpoints, and what to do instead.
_REFUSED = {
    "deepspeed": "let DeepSpeed save to a folder, with mode: directory",
    "auto_find_batch_size": "give the per_device_train_batch_size that fits",
    "enable_jit_checkpoint": "the callback saves before the machine ends",
}


def _check_arguments(args: Any) -> None:
    """Raise ValueError, which names the argument, if one cannot be honoured."""
    for name, instead in _REFUSED.items():
        if getattr(args, name, False):
            raise ValueError(
                f"{name} does not work with spotd_hook.hf.Callback: leave it out, and {instead}"
            )
    if args.push_to_hub and args.hub_strategy != "end":
        raise ValueError(
            f"push_to_hub=True with hub_strategy={str(args.hub_strategy.value)!r} pushes the "
            "trainer's own checkpoints, which spotd_hook.hf.Callback replaces: use "
            'hub_strategy="end"'
        )


def _has_length(loader: Any) -> bool:
    try:
        return len(loader) >= 0
    except TypeError:
        return False


def _copied(state: Any) -> dict[str, Any]:
    """Return a copy of a state dict in the main memory."""
    return {
        name: value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
        for name, value in state.items()
    }


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
