"""Saving and resuming for transformers' Trainer, in one line:

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
from .session import Next, Resumed, Session
from .weights import give_weights

_STATE = "trainer_state.json"  # as transformers calls it


class Callback(TrainerCallback):  # type: ignore[misc]
    """Saves model, optimizer, schedule, scaler, random generators and the trainer's own state, by
    the cadence of the job, in place of the trainer's own checkpoints; leaves before the machine
    goes; `trainer.train()` goes on where the job was, and ends the program where it is finished.
    Add it before anything is trained. What comes after `train()` is not repeated on another
    machine."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._objects: dict[str, Stateful] = {}
        self._loss: float | Tensor = 0.0
        self._saved_step = 0
        self._since = 0.0  # the last step's end, and that of what the trainer did then
        self._resumed: Resumed | None = None
        self._session = Session(self._collect)
        self._train: Callable[..., Any] = trainer.train
        self._training_step: Callable[..., Tensor] = trainer.training_step
        self._load: Callable[..., Any] = trainer._load_from_checkpoint  # noqa: SLF001
        trainer.train = self._train_on
        trainer.training_step = self._step_on
        trainer._load_from_checkpoint = self._load_unless_resumed  # noqa: SLF001

    # --- what stands before the trainer's own

    def _train_on(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """`train`, from the job's newest checkpoint where there is one."""
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

    def _step_on(self, *args: Any, **kwargs: Any) -> Tensor:
        loss = self._training_step(*args, **kwargs)
        self._loss = self._loss + loss.detach()
        return loss

    def _load_unless_resumed(self, *args: Any, **kwargs: Any) -> Any:
        """Weights come from no folder, but from us, when all has been prepared."""
        return None if self._resumed is not None else self._load(*args, **kwargs)

    # --- events

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        del args, control
        found = {name: kwargs[name] for name in ("model", "optimizer", "lr_scheduler")}
        scaler = getattr(self._trainer.accelerator, "scaler", None)
        self._objects = stateful(found if scaler is None else {**found, "scaler": scaler})
        self._session.progress.steps = state.max_steps
        if self._resumed is not None and self._resumed.weights is not None:
            give_weights(self._objects, self._resumed.weights)
            self._resumed = None
        if self._resumed is not None:
            for name, one in self._objects.items():
                one.load_state_dict(self._resumed.shared[name])
        self._session.rest()
        self._go_on()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An epoch's order is drawn after this."""
        del args, control, kwargs
        if not (state.epoch or 0) % 1:
            self._give_chance()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Within an epoch, its order was drawn again, and its first batches were passed over. All
        batches of the step have come."""
        del args, state, control, kwargs
        self._session.progress.waited(time.monotonic() - self._since)
        self._give_chance()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        del args, kwargs
        loss, self._loss = self._loss, 0.0
        then = self._session.after(float(loss))
        last = state.global_step >= state.max_steps or control.should_training_stop
        if then is Next.FENCED:
            self._session.leave_fenced()
        elif then is Next.LEAVE and not last:
            self._session.leave()
        elif then is Next.SAVE and not last:
            self._save(state.global_step)
        control.should_save = False
        self._go_on()
        return control

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """What comes between two steps, evaluations as well, is no wait for data."""
        del args, state, control, kwargs
        self._go_on()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        del args, state, control, kwargs
        self._go_on()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """With save_strategy="epoch" one is saved here, beside those by the job's cadence."""
        del args, kwargs
        last = state.global_step >= state.max_steps or control.should_training_stop
        if control.should_save and not last and self._saved_step != state.global_step:
            self._save(state.global_step)
        control.should_save = False
        self._go_on()
        return control

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        del args, state, control, kwargs
        self._session.finish()

    # --- within

    def _go_on(self) -> None:
        """From here on the next batches are waited for."""
        self._since = time.monotonic()

    def _save(self, step: int) -> None:
        self._session.save()
        self._saved_step = step

    def _give_chance(self) -> None:
        if self._resumed is not None:
            rng_state.give(self._resumed.own["chance"])
            self._resumed = None

    def _collect(self) -> tuple[Any, Any]:
        shared = {name: dict(one.state_dict()) for name, one in self._objects.items()}
        return {**shared, "trainer": self._trainer_state()}, {"chance": rng_state.take()}

    def _trainer_state(self) -> dict[str, Any]:
        """As its own checkpoints have it."""
        trainer = self._trainer
        state, found = trainer.state, dict[str, Any]()
        for one in [*trainer.callback_handler.callbacks, trainer.control]:
            if isinstance(one, ExportableState):
                name, before = type(one).__name__, found.get(type(one).__name__)
                found[name] = one.state() if before is None else [*_listed(before), one.state()]
        state.stateful_callbacks = found
        whole: dict[str, Any] = json.loads(json.dumps(asdict(state)))
        return whole


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
