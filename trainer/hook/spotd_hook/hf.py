"""Save and resume with transformers' Trainer:

    trainer.add_callback(spotd_hook.hf.Callback(trainer))

Needs transformers 4.57 to 5, Python >= 3.10.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers.trainer_callback import ExportableState, TrainerCallback

from . import rng_state
from .objects import Stateful, stateful
from .session import NextAction, Resumed, Session
from .weights import load_weights

_STATE = "trainer_state.json"  # the name in transformers


class Callback(TrainerCallback):  # type: ignore[misc]
    """Replaces the trainer's own checkpoints by those of the job.

    It saves model, optimizer, scheduler, scaler, random generators and the trainer's state at the
    job's interval, saves and exits before the machine ends, makes `trainer.train()` resume, and
    ends the program if the job is finished. Add it before training starts. Code after `train()` is
    not repeated on another machine.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._objects: dict[str, Stateful] = {}
        self._loss: float | Tensor = 0.0
        self._saved_step = 0
        self._waiting_since_s = 0.0  # end of the last step and of work after it
        self._resumed: Resumed | None = None
        self._session = Session(self._collect)
        self._train: Callable[..., Any] = trainer.train
        self._training_step: Callable[..., Tensor] = trainer.training_step
        self._load: Callable[..., Any] = trainer._load_from_checkpoint  # noqa: SLF001
        trainer.train = self._train_resumed
        trainer.training_step = self._training_step_with_loss
        trainer._load_from_checkpoint = self._load_unless_resumed  # noqa: SLF001

    # --- replacements of the trainer's methods

    def _train_resumed(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """`train`, from the job's newest checkpoint if there is one."""
        session = self._session
        try:
            self._resumed = session.begin()
            if self._resumed is None or self._resumed.weights is not None:
                return self._train(resume_from_checkpoint, *args, **kwargs)
            with tempfile.TemporaryDirectory(prefix="spotd-resume-") as folder:
                text = json.dumps(self._resumed.shared["trainer"])
                (Path(folder) / _STATE).write_text(text, encoding="utf-8")
                return self._train(folder, *args, **kwargs)
        finally:
            session.close()

    def _training_step_with_loss(self, *args: Any, **kwargs: Any) -> Tensor:
        loss = self._training_step(*args, **kwargs)
        self._loss = self._loss + loss.detach()
        return loss

    def _load_unless_resumed(self, *args: Any, **kwargs: Any) -> Any:
        """Skip loading from a folder: the state is restored in `on_train_begin`."""
        return None if self._resumed is not None else self._load(*args, **kwargs)

    # --- events

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        del args, control
        objects = {name: kwargs[name] for name in ("model", "optimizer", "lr_scheduler")}
        scaler = getattr(self._trainer.accelerator, "scaler", None)
        self._objects = stateful(objects if scaler is None else {**objects, "scaler": scaler})
        self._session.progress.steps = state.max_steps
        if self._resumed is not None and self._resumed.weights is not None:
            load_weights(self._objects, self._resumed.weights)
            self._resumed = None
        if self._resumed is not None:
            for name, obj in self._objects.items():
                obj.load_state_dict(self._resumed.shared[name])
        self._session.reset_timers()
        self._start_wait()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The order of an epoch is drawn after this."""
        del args, control, kwargs
        if not (state.epoch or 0) % 1:
            self._restore_rng()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Within an epoch, its order was drawn again and its first batches were skipped by now.

        All batches of the step have been loaded.
        """
        del args, state, control, kwargs
        self._session.progress.add_data_wait(time.monotonic() - self._waiting_since_s)
        self._restore_rng()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        del args, kwargs
        loss, self._loss = self._loss, 0.0
        next_action = self._session.after_step(float(loss))
        last = state.global_step >= state.max_steps or control.should_training_stop
        if next_action is NextAction.FENCED:
            self._session.exit_fenced()
        elif next_action is NextAction.LEAVE and not last:
            self._session.exit_saved()
        elif next_action is NextAction.SAVE and not last:
            self._save(state.global_step)
        control.should_save = False
        self._start_wait()
        return control

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Do not count work between two steps, such as an evaluation, as a wait for data."""
        del args, state, control, kwargs
        self._start_wait()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        del args, state, control, kwargs
        self._start_wait()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """With save_strategy="epoch", also save here, in addition to the job's interval."""
        del args, kwargs
        last = state.global_step >= state.max_steps or control.should_training_stop
        if control.should_save and not last and self._saved_step != state.global_step:
            self._save(state.global_step)
        control.should_save = False
        self._start_wait()
        return control

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        del args, state, control, kwargs
        self._session.finish()

    # --- internal

    def _start_wait(self) -> None:
        """Start to measure the wait for the next batches."""
        self._waiting_since_s = time.monotonic()

    def _save(self, step: int) -> None:
        self._session.save()
        self._saved_step = step

    def _restore_rng(self) -> None:
        if self._resumed is not None:
            rng_state.restore(self._resumed.per_rank["chance"])
            self._resumed = None

    def _collect(self) -> tuple[Any, Any]:
        shared = {name: dict(obj.state_dict()) for name, obj in self._objects.items()}
        return {**shared, "trainer": self._trainer_state()}, {"chance": rng_state.capture()}

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


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
