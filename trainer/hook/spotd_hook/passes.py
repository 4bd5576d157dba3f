"""The passes of transformers' Trainer over a data set that has no length.

Without a length the trainer takes all steps for one pass: after a resume beyond the first one it
would skip all of the data, and begin with another pass. Needs transformers 5, Python >= 3.10.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from torch.utils.data import IterableDataset


class Passes:
    """Counts the passes of a trainer, and lets it resume in the right one.

    Passes after the first are exact where the data set's order is a function of the pass: where it
    has `set_epoch()`, or is the same in all.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._done, self._first_step = -1, 0  # passes before this one; the step at its begin
        self._begun: tuple[int, int] | None = None  # the same of the first pass on this machine
        self._resumed: Mapping[str, int] | None = None
        # Before transformers 5 the place is computed where nothing can be replaced.
        self._place = getattr(trainer, "_init_training_state", None)
        if self._place is not None:
            trainer._init_training_state = self._place_of  # noqa: SLF001

    def warn(self) -> None:
        """Print a warning where a resume may yield other data."""
        data = self._trainer.train_dataset
        sets_order = self._place is not None and hasattr(data, "set_epoch")
        if isinstance(data, IterableDataset) and not hasattr(data, "__len__") and not sets_order:
            print(
                f"spotd_hook: train_dataset is a {type(data).__name__} without "
                + ("set_epoch(epoch)" if self._place is not None else "a length")
                + ": a training that is interrupted after its first pass resumes with the data of "
                "the first pass",
                file=sys.stderr,
                flush=True,
            )

    def start(self, resumed: Mapping[str, int] | None) -> None:
        """A training begins, or resumes from what `state` returned."""
        self._resumed, self._begun = resumed, None
        self._done, self._first_step = -1, 0

    def begin(self, step: int) -> bool:
        """A pass begins after `step` steps, or is resumed there; return whether it surely begins.

        One that ended on another machine is resumed at its end.
        """
        begun, self._begun = self._begun, None
        self._done, self._first_step = begun or (self._done + 1, step)
        return self._place is not None and begun is None

    def state(self) -> dict[str, int]:
        return {"done": self._done, "first_step": self._first_step}

    def _place_of(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """Return the passes done and the batches to skip, as the trainer's method does."""
        assert self._place is not None  # noqa: S101 - else it was not replaced
        trainer, resumed = self._trainer, self._resumed
        done, batches = self._place(*args, **kwargs)
        step, per_step = trainer.state.global_step, trainer.args.gradient_accumulation_steps
        if resumed is not None and not hasattr(trainer.train_dataset, "__len__"):
            done, batches = resumed["done"], (step - resumed["first_step"]) * per_step
            if trainer.args.ignore_data_skip:
                batches = 0
        self._begun = done, step - batches // per_step
        return done, batches
