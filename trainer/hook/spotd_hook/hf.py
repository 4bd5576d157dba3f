"""Save and resume with transformers' Trainer:

    trainer.add_callback(spotd_hook.hf.Callback(trainer))

Needs transformers 4.57 to 5, Python >= 3.10.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.trainer_callback import ExportableState, TrainerCallback, TrainerState
from transformers.trainer_utils import TrainOutput

from . import arguments, rng_state
from .hf_data import TrainingData
from .objects import ShardedModel, Stateful, needs_all_ranks, stateful
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

    Raises ValueError for an argument of the trainer that cannot be honoured; `arguments` has the
    table.
    """

    def __init__(self, trainer: Any, name: str = "") -> None:
        check_arguments(trainer)
        self._trainer, self._name = trainer, name
        self._data = TrainingData(trainer, Program.current().warn_user)
        self._session: Session | None = None
        self._objects: dict[str, Stateful] = {}
        self._best: Any = None  # the best model's state, where the trainer looks for one
        self._loss: float | Tensor = 0.0  # of the micro-batches of the step
        self._tr_loss: Tensor | None = None  # the trainer's sum since its last log
        self._step_ended = self._epoch_ended = False  # the step is not yet whole
        self._save_wanted = False  # by the trainer's arguments
        self._first_step = 0  # of the trainer, when this training began
        self._output: TrainOutput | None = None
        self._waiting_since_s = 0.0  # end of the last step and of work after it
        self._resumed: Resumed | None = None
        self._rng: Any = None  # to be restored before the next step
        self._carried: Tensor | None = None  # the restored sum of losses, until the next loss
        self._step_values: dict[str, Any] = {}  # of the last step, for an evaluation repeated
        self._pending: dict[str, Any] | None = None  # what is still to follow a step
        self._state_before: dict[str, Any] | None = None  # the trainer's, before an evaluation
        self._means: dict[str, Any] | None = None  # TRL's, before an evaluation or after a log
        self._ignored_keys: list[str] | None = None  # of the model's output, in evaluations
        self._skips_start = False  # the evaluation at the start was done on another machine
        self._stops_at_once = False  # an evaluation that was repeated ended the training
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
        self._evaluate: Callable[..., Any] = trainer.evaluate
        trainer.evaluate = self._evaluate_whole
        self._load_best_folder: Callable[[], None] = trainer._load_best_model  # noqa: SLF001
        trainer._load_best_model = self._load_best  # noqa: SLF001
        self._evaluate_and_schedule: Callable[..., Any] = trainer._evaluate  # noqa: SLF001
        trainer._evaluate = self._evaluate_unless_done  # noqa: SLF001
        handler = trainer.callback_handler
        handler.on_log = self._beside_step(handler.on_log, logs=True)
        handler.on_epoch_end = self._beside_step(handler.on_epoch_end, decides=True)

    # --- replacements of the trainer's methods

    def _train_resumed(
        self,
        resume_from_checkpoint: Any = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
        **kwargs: Any,
    ) -> Any:
        """`train`, from where this training stands in the job's newest checkpoint."""
        arguments.check(arguments.HF_TRAIN, {} if trial is None else {"trial": trial})
        session = self._session = Session(self._collect, self._collect_own, name=self._name)
        if not session.ranks.rank:
            arguments.warn(arguments.TRAINING_ARGUMENTS, _given(self._trainer.args))
        self._ignored_keys = kwargs["ignore_keys_for_eval"] = ignore_keys_for_eval
        self._name, self._best, self._output = "", None, None
        self._step_ended, self._stops_at_once, self._carried = False, False, None
        try:
            self._resumed = resumed = session.begin()
            if resumed is not None and resumed.ended:
                self._output = self._restore_results(resumed)
            elif resumed is None or resumed.weights is not None:
                self._data.start(None)
                with self._data.skipping():
                    self._output = self._train(resume_from_checkpoint, **kwargs)
            else:
                self._data.start(resumed.per_rank["data"])
                with (
                    tempfile.TemporaryDirectory(prefix="spotd-resume-") as folder,
                    self._data.skipping(),
                ):
                    text = json.dumps(resumed.shared["trainer"])
                    (Path(folder) / _STATE).write_text(text, encoding="utf-8")
                    self._output = self._train(folder, **kwargs)
            if self._trainer.args.load_best_model_at_end:
                self._best = None  # the model is the best one by now
            elif self._best is not None:
                self._write_best()
            session.busy()
            session.finish()
        except BaseException:
            session.fail()
            raise
        return self._output

    def _training_step_with_loss(self, *args: Any, **kwargs: Any) -> Tensor:
        self._data.count(args[1] if len(args) > 1 else kwargs["inputs"])
        loss = self._training_step(*args, **kwargs)
        self._loss = self._loss + loss.detach()
        carried = self._carried
        if carried is not None and torch.isfinite(loss):  # else the trainer leaves the loss out
            loss, self._carried = loss + carried.to(loss.device), None
        return loss

    def _load_unless_resumed(self, *args: Any, **kwargs: Any) -> Any:
        """Skip loading from a folder: the state is restored in `on_train_begin`."""
        return None if self._resumed is not None else self._load(*args, **kwargs)

    def _complete_step(
        self, tr_loss: Tensor, grad_norm: Any, model: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Log, evaluate, and save: after that a step is whole.

        The trainer calls this after each step, and again at the end of an epoch, to which the
        epoch's last step belongs.
        """
        if self._stops_at_once:
            return
        if self._carried is not None:  # no loss since the resume could be added to it
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
        """`evaluate`; one that belongs to a step may be interrupted, and is repeated then.

        Its log and the callbacks that follow it are repeated with it.
        """
        if self._step_ended:
            self._state_before, self._means = self._trainer_state(), _means_of(self._trainer)
        try:
            return self._beside_step(self._evaluate)(*args, **kwargs)
        finally:
            self._state_before = self._means = None

    def _beside_step(
        self, call: Callable[..., Any], *, decides: bool = False, logs: bool = False
    ) -> Callable[..., Any]:
        """Return `call`, during which the counted step can be saved.

        What the trainer is still to do after it follows on the next machine. `decides`: callbacks
        decide about that in `call` itself. `logs`: the means so far are logged, and begin anew.
        """

        def run(*args: Any, **kwargs: Any) -> Any:
            session = self._session
            if session is None or not self._step_ended or session.evaluating:
                return call(*args, **kwargs)
            self._pending = None if decides else self._to_follow()
            self._means = _means_of(self._trainer, logged=True) if logs else self._means
            session.begin_evaluation()
            result = call(*args, **kwargs)
            session.end_evaluation()
            self._pending = None
            self._means = None if logs else self._means
            return result

        return run

    def _to_follow(self) -> dict[str, Any]:
        """Return what the trainer is still to do after the counted step."""
        control = self._trainer.control
        return {
            **self._step_values,
            "log": bool(control.should_log),
            "evaluate": bool(control.should_evaluate),
            "save": bool(control.should_save),
        }

    def _repeat_evaluation(self, resumed: Resumed) -> None:
        """Do what was to follow the last step where the machine ended, before the next step."""
        trainer, pending = self._trainer, resumed.shared["pending"]
        control, session = trainer.control, self._active_session
        rng_state.restore(resumed.per_rank["chance"])
        control.should_log, control.should_evaluate = pending["log"], pending["evaluate"]
        control.should_save = pending["save"]
        self._step_ended = self._epoch_ended = True
        session.resume_step(resumed.per_rank["loss"])
        tr_loss = resumed.per_rank["tr_loss"].to(trainer.args.device)
        self._carried = None
        self._complete_step(
            tr_loss,
            pending["grad_norm"],
            trainer.model_wrapped,
            None,  # no trial of a search
            trainer.state.epoch,
            self._ignored_keys,
            time.time(),
            learning_rate=pending["learning_rate"],
        )
        self._rng, self._carried = rng_state.capture(), tr_loss
        state = trainer.state
        if trainer.control.should_training_stop or state.global_step >= state.max_steps:
            self._stops_at_once, self._carried = True, None
            trainer._total_loss_scalar += tr_loss.item()  # noqa: SLF001 - as at the end of training
            self._data.end()

    def _evaluate_unless_done(self, *args: Any, **kwargs: Any) -> Any:
        """`_evaluate`; that of eval_on_start was done if the training began on another machine."""
        if kwargs.get("skip_scheduler") and self._skips_start:
            return {}
        return self._evaluate_and_schedule(*args, **kwargs)

    def _on_trainer_save(self, *_: Any) -> None:
        """Note that the trainer's arguments ask for a save, and which model is the best."""
        trainer, state = self._trainer, self._trainer.state
        self._save_wanted = True
        if state.best_global_step and state.best_global_step == state.global_step:
            run_folder = trainer._get_output_dir(trial=None)  # noqa: SLF001
            state.best_model_checkpoint = os.path.join(  # noqa: PTH118 - as the trainer writes it
                run_folder, f"checkpoint-{state.best_global_step}"
            )
            self._best = _copied(self._objects["model"].state_dict())
        if trainer.args.push_to_hub and trainer.args.hub_strategy != "end":
            with tempfile.TemporaryDirectory(prefix="spotd-push-") as folder:
                trainer.save_model(folder, _internal_call=True)
                trainer._push_from_checkpoint(folder)  # noqa: SLF001 - it copies the files first

    def _load_best(self) -> None:
        """Load the best model, and write it where the trainer's state says that it is.

        Without one of this job, it is of the checkpoint that the program resumed from.
        """
        if self._best is None:
            self._load_best_folder()
            return
        best = self._best
        if isinstance(self._objects["model"], ShardedModel):  # only rank 0 has it
            ranks = self._active_session.ranks
            best = ranks.broadcast_tensors(None if ranks.rank else best)
        self._objects["model"].load_state_dict(best)
        self._save_best_folder(best)

    def _write_best(self) -> None:
        """Write the best model where the trainer's state says that it is; keep the present one."""
        present = _copied(self._objects["model"].state_dict())
        self._load_best()
        if isinstance(self._objects["model"], ShardedModel):
            ranks = self._active_session.ranks
            present = ranks.broadcast_tensors(None if ranks.rank else present)
        self._objects["model"].load_state_dict(present)

    def _save_best_folder(self, best: Any) -> None:
        trainer, folder = self._trainer, self._trainer.state.best_model_checkpoint
        if trainer.is_fsdp_enabled:
            trainer._save(folder, state_dict=best)  # noqa: SLF001 - save_model writes no whole one
        else:
            trainer.save_model(folder, _internal_call=True)

    # --- events

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        del args, control
        trainer, resumed = self._trainer, self._resumed
        self._objects = self._stateful({name: kwargs[name] for name in _NAMES})
        self._active_session.needs_all = needs_all_ranks(self._objects)
        if resumed is not None and resumed.weights is not None:
            load_weights(self._objects, resumed.weights)
            self._resumed = resumed = None
        self._skips_start = resumed is not None
        self._first_step = state.global_step if resumed is None else resumed.shared["first_step"]
        self._active_session.expect_steps(state.max_steps - self._first_step)
        if resumed is not None:
            for name, obj in self._objects.items():
                obj.load_state_dict(resumed.shared[name])
            sums = resumed.shared["sums"]
            trainer._total_loss_scalar = sums["total_loss"]  # noqa: SLF001
            trainer._globalstep_last_logged = sums["logged_step"]  # noqa: SLF001
            # Its means are of the whole training.
            trainer._initial_global_step = self._first_step  # noqa: SLF001
            self._restore_callbacks(resumed)
            trainer.current_flos = resumed.per_rank["flos"]
            self._rng, self._carried = resumed.per_rank["chance"], resumed.per_rank["tr_loss"]
            _restore_means(trainer, resumed.shared["means"])
            if resumed.shared["pending"] is not None:
                self._repeat_evaluation(resumed)
        self._resumed = None
        self._active_session.reset_timers()
        self._start_wait()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The order of an epoch is drawn after this: again, if it is resumed in its middle."""
        del args, control
        self._epoch_ended = False
        self._data.begin_epoch(
            kwargs["train_dataloader"],
            is_whole=not (state.epoch or 0) % 1,
            restore_rng=self._restore_rng,
        )

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
        self._data.end_step()
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

    def _collect(self) -> Any:
        trainer, session = self._trainer, self._active_session
        shared: dict[str, Any] = {
            name: dict(obj.state_dict()) for name, obj in self._objects.items()
        }
        shared["sums"] = {
            "total_loss": trainer._total_loss_scalar,  # noqa: SLF001
            "logged_step": trainer._globalstep_last_logged,  # noqa: SLF001
        }
        shared["means"] = self._means or _means_of(trainer)
        shared["best"] = self._best or {}
        shared["pending"] = self._pending or (self._to_follow() if session.evaluating else None)
        shared["first_step"], shared["limits"] = self._first_step, self._limits()
        shared["output"] = None if self._output is None else list(self._output)
        return {**shared, "trainer": self._state_before or self._trainer_state()}

    def _collect_own(self) -> Any:
        session, tr_loss = self._active_session, self._tr_loss
        return {
            "chance": session.rng or rng_state.capture(),
            "loss": session.step_loss,
            "tr_loss": torch.zeros(()) if tr_loss is None else tr_loss.detach().cpu(),
            "data": self._data.state(),
            "flos": self._trainer.current_flos,
        }

    def _limits(self) -> dict[str, float]:
        args = self._trainer.args
        return {"max_steps": args.max_steps, "num_train_epochs": args.num_train_epochs}

    def _restore_results(self, resumed: Resumed) -> TrainOutput:
        """Load what a training that has ended left: the model and the trainer's state."""
        trainer, shared = self._trainer, resumed.shared
        arguments.check_limits(self._limits(), shared["limits"])
        self._objects = stateful({"model": trainer.model})
        self._objects["model"].load_state_dict(shared["model"])
        trainer.state = TrainerState(**shared["trainer"])
        trainer.callback_handler.model = trainer.model
        self._best = shared["best"] or None
        if trainer.args.load_best_model_at_end and trainer.state.best_model_checkpoint is not None:
            self._save_best_folder(shared["model"])  # the model has its weights already
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


_NAMES = ("model", "optimizer", "lr_scheduler")


def check_arguments(trainer: Any) -> None:
    """Raise ValueError, which names the argument, if one cannot be honoured."""
    args = trainer.args
    arguments.check(arguments.TRAINING_ARGUMENTS, _given(args))
    if args.push_to_hub and args.hub_strategy not in ("end", "every_save"):
        raise arguments.refused(
            arguments.TRAINING_ARGUMENTS, "hub_strategy", str(args.hub_strategy.value)
        )
    plugin = trainer.accelerator.state.fsdp_plugin if trainer.is_fsdp_enabled else None
    if plugin is not None and getattr(plugin, "fsdp_version", 1) == 1:
        raise arguments.refused(arguments.TRAINING_ARGUMENTS, "fsdp_config", args.fsdp_config)


def _given(args: Any) -> dict[str, Any]:
    """Return the arguments that are not as they are by default."""
    values = {one.name: (getattr(args, one.name, None), one.default) for one in fields(args)}
    return {name: value for name, (value, default) in values.items() if value != default}


def _means_of(trainer: Any, *, logged: bool = False) -> dict[str, Any] | None:
    """Return what TRL's trainers have collected for their next log, and their count of tokens.

    `logged`: what was collected in training is in a log by now.
    """
    metrics = getattr(trainer, "_metrics", None)
    if not isinstance(metrics, dict):
        return None
    lists = {
        mode: {name: list(values) for name, values in by_name.items()}
        for mode, by_name in metrics.items()
        if not (logged and mode == "train")
    }
    return {"metrics": lists, "tokens": getattr(trainer, "_total_train_tokens", 0)}


def _restore_means(trainer: Any, saved: dict[str, Any] | None) -> None:
    if saved is not None:
        for mode, lists in saved["metrics"].items():
            trainer._metrics[mode].update(lists)  # noqa: SLF001
        trainer._total_train_tokens = saved["tokens"]  # noqa: SLF001


def _copied(state: Any) -> dict[str, Any]:
    """Return a copy of a state dict in the main memory."""
    return {
        name: value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
        for name, value in state.items()
    }


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
