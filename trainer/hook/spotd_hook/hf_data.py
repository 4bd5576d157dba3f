"""The training data of transformers' Trainer: a resumed training goes on with the same batches.

Needs transformers >= 4.57, Python >= 3.10.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from . import rng_state
from .data_position import DataPosition, ReadWatch, Rest, has_position


class TrainingData:
    """Replaces the methods of a trainer that read its training data.

    Batches of a map-style dataset are found again by their number: the order of an epoch is drawn
    again as it was. For other data the position in it is saved. `warn` gets a message for the user.
    """

    def __init__(self, trainer: Any, warn: Callable[[str], None]) -> None:
        self._trainer, self._warn = trainer, warn
        self._saved: Mapping[str, Any] | None = None  # where to resume
        self._order: Mapping[str, Any] | None = None  # to be restored before it is drawn again
        self._epoch_order: dict[str, Any] = {}  # what the order of this epoch was drawn with
        self._generator: torch.Generator | None = None  # of the sampler
        self._position: DataPosition | None = None  # in data that has no order of its own
        self._watch: ReadWatch | None = None  # of such data without a state
        self._is_over = False
        self._get_loader: Callable[..., Any] = trainer.get_train_dataloader
        trainer.get_train_dataloader = self._get_positioned_loader
        self._get_batches: Callable[..., Any] = trainer.get_batch_samples
        trainer.get_batch_samples = self._read_batches
        # Before transformers 5 there is no such method: see `_get_positioned_loader`.
        self._place = getattr(trainer, "_init_training_state", None)
        if self._place is not None:
            trainer._init_training_state = self._place_resumed  # noqa: SLF001

    def start(self, saved: Mapping[str, Any] | None) -> None:
        """A training begins, or resumes from what `state` returned."""
        self._saved, self._is_over = saved, False
        self._order = None if saved is None else saved["order"]
        self._epoch_order = {} if saved is None else dict(saved["order"])

    def state(self) -> dict[str, Any]:
        """Return where the training stands after its last step."""
        now = {} if self._generator is None else {"now": self._generator.get_state()}
        return {
            "order": {**self._epoch_order, **now},
            "position": None if self._position is None else self._position.state(),
        }

    def end(self) -> None:
        """Have no more batches in this training."""
        self._is_over = True

    def begin_epoch(self, loader: Any, *, is_whole: bool, restore_rng: Callable[[], None]) -> None:
        """Prepare for the order of an epoch to be drawn: again, if it is resumed in its middle.

        `restore_rng` sets the generators as they were after the last step.
        """
        order, self._order = self._order, None
        if self._position is not None:
            self._begin_pass(self._position, is_whole=is_whole, restore_rng=restore_rng)
            return
        if is_whole:
            restore_rng()
        self._generator = _generator_of(loader)
        if order is not None:
            if not is_whole:
                rng_state.restore(order["chance"])
            drawn_with = order.get("now" if is_whole else "generator")
            if self._generator is not None and drawn_with is not None:
                self._generator.set_state(drawn_with)
        self._epoch_order = {"chance": rng_state.capture()}
        if self._generator is not None:
            self._epoch_order["generator"] = self._generator.get_state()

    def count(self, inputs: Any) -> None:
        """Note a batch that is trained on."""
        if self._position is not None:
            self._position.count(inputs)

    def end_step(self) -> None:
        if self._position is not None:
            self._position.end_step()

    @contextmanager
    def skipping(self) -> Iterator[None]:
        """Replace the function by which the trainer skips batches after a resume.

        Before 1.15, accelerate's forgets the epoch, so that the first one's order comes again.
        """
        module: Any = sys.modules["transformers.trainer"]
        skip_first_batches = module.skip_first_batches

        def skip(loader: Any, num_batches: int = 0) -> Any:
            position = self._position
            if position is not None and position.is_returning:
                return Rest(position)
            skipped = skip_first_batches(loader, num_batches)
            if hasattr(loader, "iteration"):
                skipped.iteration = loader.iteration
            return skipped

        module.skip_first_batches = skip
        try:
            yield
        finally:
            module.skip_first_batches = skip_first_batches

    # --- replacements of the trainer's methods

    def _get_positioned_loader(self, *args: Any, **kwargs: Any) -> Any:
        loader, skips_nothing = self._get_loader(*args, **kwargs), self._ignores_position
        self._position = self._watch = self._generator = None
        if not has_position(loader):
            return loader
        self._epoch_order = {}
        self._position = position = DataPosition(loader, self._warn)
        if not position.keeps_state and not skips_nothing:
            self._watch = ReadWatch(position.name, self._warn)
            if self._place is None and not _has_length(loader):
                self._warn(
                    f"with transformers before 5, training on {position.name} goes on with other "
                    "batches if the machine ends in a later pass over it: update transformers"
                )
        saved = None if self._saved is None else self._saved["position"]
        if saved is not None and not skips_nothing:
            position.resume(saved)
        return loader

    def _place_resumed(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """`_init_training_state`: the passes and the batches of the next one trained on.

        Of a loader without a length, the trainer takes all steps for those of one pass.
        """
        assert self._place is not None  # noqa: S101 - else it is not replaced
        passes, batches = self._place(*args, **kwargs)
        position = self._position
        if position is None or not position.returns or _has_length(position.loader):
            return passes, batches
        return position.reached

    def _read_batches(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_over:
            return [], None
        if self._watch is None:
            return self._get_batches(*args, **kwargs)
        return self._watch.read(self._get_batches, *args, **kwargs)

    # --- internal

    @property
    def _ignores_position(self) -> bool:
        return bool(self._trainer.args.ignore_data_skip)

    def _begin_pass(
        self, position: DataPosition, *, is_whole: bool, restore_rng: Callable[[], None]
    ) -> None:
        if self._watch is not None:
            self._watch.begin_pass()
        if position.returns and not (is_whole and _has_length(position.loader)):
            position.go_back()
            return
        if position.returns:
            position.pass_over()
        if is_whole or position.has_begun:
            restore_rng()
        position.begin_pass()


def _generator_of(loader: Any) -> torch.Generator | None:
    """Return the generator that the sampler of a loader of accelerate draws from."""
    sampler = loader.get_sampler() if hasattr(loader, "get_sampler") else None
    generator: torch.Generator | None = getattr(sampler, "generator", None)
    return generator


def _has_length(loader: Any) -> bool:
    try:
        return len(loader) >= 0
    except TypeError:
        return False
