"""Where a training stands in data that has no order of its own, and the way back there.

Batches of a map-style dataset are found again by their number. An IterableDataset, and a loader
that keeps a state, are another matter. Used by hf.py. Needs torch, Python >= 3.10.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from . import rng_state

_MAX_PARTS = 100_000  # of what a dataset keeps that are compared
_STATES = 8  # of the newest batches; loaders read ahead


def has_position(loader: Any) -> bool:
    """Return whether batches of this loader cannot be found again by their number alone."""
    return _keeps_state(_base(loader)) or isinstance(
        getattr(loader, "dataset", None), IterableDataset
    )


class DataPosition:
    """The pass and the batch in it that a training has reached.

    To return there, in this order of preference: the loader's state is loaded, the dataset's state
    is loaded, or the batches before are read again. `warn` gets a message for the user.
    """

    def __init__(self, loader: Any, warn: Callable[[str], None]) -> None:
        self.loader, self._warn = loader, warn
        self._passes, self._batches = -1, 0  # the pass, from 0; batches of it trained on
        self._rng: Any = None  # when the pass began
        self._fresh = ""  # digest of the dataset when the pass began
        self._last: Any = None  # the last batch
        self._states: deque[tuple[int, Any]] = deque(maxlen=_STATES)  # of the dataset
        self._fetched = 0  # batches of the pass that were read
        self._now: dict[str, Any] = {}  # after the last step
        self._saved: Mapping[str, Any] | None = None  # where to return to
        self.returns = False  # the next pass is that of the checkpoint
        if self._uses_dataset_state:
            self._record_states(_base(loader))

    @property
    def name(self) -> str:
        """The dataset, for messages."""
        dataset = getattr(self.loader, "dataset", None)
        return type(getattr(dataset, "dataset", dataset)).__name__

    @property
    def keeps_state(self) -> bool:
        """Whether the loader or the dataset says by itself where it stands."""
        return _keeps_state(_base(self.loader)) or self._uses_dataset_state

    # --- while training

    def begin_pass(self) -> None:
        """Note that a pass begins."""
        self._passes += 1
        self._saved, self._batches, self._fetched = None, 0, 0
        self._states.clear()
        self._rng, self._fresh = rng_state.capture(), self._digest_of_dataset()

    def count(self, batch: Any) -> None:
        """Note a batch that is trained on."""
        self._batches += 1
        self._last = dict(batch) if isinstance(batch, Mapping) else batch

    def end_step(self) -> None:
        """Note where the data stands: before the next step, a loader reads ahead."""
        self._now = {
            "passes": self._passes,
            "batches": self._batches,
            "rng": self._rng,
            "fresh": self._fresh,
            # accelerate's own is that of the batches that it has handed out
            "loader": self.loader.state_dict() if _keeps_state(_base(self.loader)) else None,
            "dataset": dict(self._states).get(self._batches),
        }

    def state(self) -> dict[str, Any]:
        """Return the position after the last step, for a checkpoint."""
        return {**self._now, "last": digest_of_batch([self._last])}

    # --- after a resume

    def resume(self, state: Mapping[str, Any]) -> None:
        """Return to this position with the next pass."""
        self._saved, self.returns = state, True

    @property
    def has_begun(self) -> bool:
        """Whether it was in a pass of this program's run."""
        return self._passes >= 0

    @property
    def is_returning(self) -> bool:
        """Whether the pass of the checkpoint is not over yet."""
        return self._saved is not None

    @property
    def reached(self) -> tuple[int, int]:
        """Return the pass of the checkpoint, and its batches that were trained on."""
        return self._position_saved["passes"], self._position_saved["batches"]

    def go_back(self) -> None:
        """Bring the data to where the pass of the checkpoint began, which begins again now."""
        saved, self.returns = self._position_saved, False
        self._passes, self._batches = saved["passes"], saved["batches"]
        self._rng, self._fresh = saved["rng"], saved["fresh"]
        by_reading = saved["loader"] is None and saved["dataset"] is None
        if by_reading and not self._restarts(saved):
            for number in range(saved["passes"]):
                self._set_epoch(number)
                for _ in self.loader:
                    pass
        self._fetched = 0
        rng_state.restore(saved["rng"])

    def pass_over(self) -> None:
        """Bring the data to the end of the pass of the checkpoint, which is trained on."""
        self.go_back()
        self._set_epoch(self._passes)
        for _ in self.rest():
            pass

    def rest(self) -> Iterator[Any]:
        """Yield the batches of the pass after those that the checkpoint has."""
        saved = self._position_saved
        if saved["loader"] is not None:
            self.loader.load_state_dict(saved["loader"])
            finished = saved["loader"].get("_iterator_finished", False)
            return iter(()) if finished else iter(self.loader)
        if saved["dataset"] is not None:
            self.loader.dataset.load_state_dict(saved["dataset"])
            self._fetched = saved["batches"]
            return iter(self.loader)
        return self._read_again(saved)

    @property
    def _position_saved(self) -> Mapping[str, Any]:
        assert self._saved is not None  # noqa: S101 - `resume` came before
        return self._saved

    def _read_again(self, saved: Mapping[str, Any]) -> Iterator[Any]:
        batches = iter(self.loader)
        last = deque(islice(batches, saved["batches"]), maxlen=1)
        if saved["batches"] and digest_of_batch(list(last)) != saved["last"]:
            self._warn(
                f"the training data ({self.name}) is not the same when it is read again: from "
                f"here on, training has other batches than without the interruption. {_ADVICE}"
            )
        yield from batches

    def _restarts(self, saved: Mapping[str, Any]) -> bool:
        """Return whether earlier passes have nothing to do with this one.

        They have if each pass of the dataset continues where the last one ended. Datasets with
        `set_epoch` are told which pass it is; workers that end with a pass begin anew.
        """
        base, dataset = _base(self.loader), getattr(self.loader, "dataset", None)
        if hasattr(getattr(dataset, "dataset", dataset), "set_epoch"):
            return True
        if getattr(base, "num_workers", 0) and not getattr(base, "persistent_workers", False):
            return True
        return bool(saved["fresh"]) and saved["fresh"] == self._digest_of_dataset()

    def _set_epoch(self, number: int) -> None:
        if hasattr(self.loader, "set_epoch"):
            self.loader.set_epoch(number)

    # --- the dataset

    @property
    def _uses_dataset_state(self) -> bool:
        """Whether the dataset has a state that says where this process reads it.

        That of a shuffled dataset of Hugging Face leaves out the content of its buffer.
        """
        base, dataset = _base(self.loader), getattr(self.loader, "dataset", None)
        return (
            not _keeps_state(base)
            and _keeps_state(dataset)
            and not getattr(base, "num_workers", 0)
            and not _shuffles(dataset)
        )

    def _record_states(self, base: Any) -> None:
        """Record the dataset's state after each batch: loaders read one more than they yield."""
        collate, dataset = base.collate_fn, self.loader.dataset

        def collate_and_record(samples: Any) -> Any:
            self._fetched += 1
            self._states.append((self._fetched, dataset.state_dict()))
            return collate(samples)

        base.collate_fn = collate_and_record

    def _digest_of_dataset(self) -> str:
        """Return the digest of what the dataset keeps; "" if that cannot be compared."""
        dataset, total = getattr(self.loader, "dataset", None), hashlib.sha256()
        try:
            for count, part in enumerate(_parts(vars(dataset))):
                if count == _MAX_PARTS:
                    return ""
                total.update(part)
        except (TypeError, RecursionError):
            return ""
        return total.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    """Yield what a plain value consists of. Raises TypeError for any other one."""
    if isinstance(value, Tensor):
        yield digest_of_batch(value).encode()
    elif isinstance(value, dict):
        for name in value:
            yield from _parts(name)
            yield from _parts(value[name])
    elif isinstance(value, (list, tuple)):
        yield f"{len(value)} in a {type(value).__name__}:".encode()
        for item in value:
            yield from _parts(item)
    elif value is None or isinstance(value, (bool, int, float, str, bytes)):
        yield f"{value!r};".encode()
    else:
        raise TypeError(type(value).__name__)


class Rest:
    """The rest of a pass after a resume, in the form of its loader."""

    def __init__(self, position: DataPosition) -> None:
        self._position = position

    def __iter__(self) -> Iterator[Any]:
        return self._position.rest()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._position.loader, name)


class ReadWatch:
    """Notices that data draws from the generators that training draws from, and so cannot be read
    again."""

    _CHECKS = 3

    def __init__(self, name: str, warn: Callable[[str], None]) -> None:
        self._name, self._warn = name, warn
        self._begins = True
        self._left = self._CHECKS

    def begin_pass(self) -> None:
        """Pass over the first batches of a pass, with which the loader seeds its workers."""
        self._begins = True

    def read(self, read: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call `read`, which reads batches."""
        checks, self._begins = self._left > 0 and not self._begins, False
        before = rng_state.capture() if checks else {}
        batches = read(*args, **kwargs)
        self._left -= checks
        if checks and not rng_state.are_equal(before, rng_state.capture()):
            self._left = 0
            self._warn(
                f"the training data ({self._name}) draws from the program's random generators "
                "while it is read: if this machine ends, the batches after that are not those of "
                f"an uninterrupted training. {_ADVICE}"
            )
        return batches


_ADVICE = (
    "Give the dataset generators of its own that are seeded by set_epoch(), or state_dict() and "
    "load_state_dict(), or use torchdata's StatefulDataLoader"
)


def digest_of_batch(batch: Any) -> str:
    """Return the digest of the tensors of a batch."""
    total = hashlib.sha256()
    for tensor in _tensors(batch):
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        total.update(str(tuple(tensor.shape)).encode())
        total.update(flat.view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for name in sorted(value, key=str):
            yield from _tensors(value[name])
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        for item in value:
            yield from _tensors(item)


def _base(loader: Any) -> Any:
    """Return the loader that accelerate has wrapped."""
    return getattr(loader, "base_dataloader", loader)


def _keeps_state(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _shuffles(dataset: Any) -> bool:
    """Return whether a Hugging Face dataset has a shuffle buffer."""
    examples = getattr(dataset, "_ex_iterable", None)
    while examples is not None:
        if "BufferShuffled" in type(examples).__name__:
            return True
        examples = getattr(examples, "ex_iterable", None)
    return False
