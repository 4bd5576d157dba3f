"""Save and resume your own training loop with four lines:

    import spotd_hook                                               # 1

    with spotd_hook.Run(model=model, optimizer=optimizer) as run:   # 2
        for step in run.steps(1000):                                # 3
            loss = train_on(batch_of(step))                         # as before
            run.report(loss)                                        # 4

See docs/library.md. Needs torch, Python >= 3.10.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

from torch import Tensor
from torch.utils.data import IterableDataset

from . import rng_state
from .objects import needs_all_ranks, stateful
from .session import NextAction, Resumed, Session
from .weights import load_weights

T = TypeVar("T")


class Run:
    """Saves and restores everything passed by name that training changes.

    Each object needs a `state_dict()`. `data` is what each rank has of its own, such as a
    StatefulDataLoader; the rest is the same on all ranks, and rank 0's is saved. Random generators
    are saved too; with a `seed`, each step instead starts with generators seeded by (seed, step,
    rank), which is exact whatever workers and iterators draw. A checkpoint made with another
    `config` is refused. `any_ranks` allows another number of ranks to resume, because the program
    keeps its global batch; it requires a `seed` and no `data`.

    It takes over SIGTERM and SIGUSR1, and ends the program (SystemExit) with 75 after a save when
    the machine ends, and with 76 when another machine has taken over. Without spotd, checkpoints go
    to ./checkpoints if spotd is installed; otherwise nothing is saved. Raises TypeError for an
    object without a state, and ValueError, RuntimeError and OSError if nothing could be saved.
    """

    def __init__(
        self,
        *,
        name: str = "",
        data: Any = None,
        seed: int | None = None,
        config: Mapping[str, Any] | None = None,
        any_ranks: bool = False,
        **objects: Any,
    ) -> None:
        if not objects:
            raise TypeError("there is nothing to save: Run(model=..., optimizer=...)")
        if any_ranks and (seed is None or data is not None):
            raise ValueError(
                "any_ranks is for ranks that have nothing of their own: give seed=1, leave data "
                "out, and compute each step's batch from its number"
            )
        self._objects = stateful(objects)
        self._per_rank_objects = {} if data is None else stateful({"data": data})
        self._seed = seed
        self._losses: tuple[float | Tensor | None, int] = (None, 0)
        self._resumed: Resumed | None = None
        self._untouched = False  # the step has begun, and nothing has changed
        self._session = Session(
            self._collect, self._collect_own, name=name, config=config, any_ranks=any_ranks
        )
        self._session.needs_all = needs_all_ranks(self._objects)

    def __enter__(self) -> Run:
        """Wait until HEAD may be claimed, and restore what training changes."""
        try:
            self._resumed = self._session.begin()
            if self._resumed is not None and self._resumed.weights is not None:
                load_weights(self._objects, self._resumed.weights)
                self._resumed = None
            if self._resumed is not None:
                self._restore(self._resumed)
        except BaseException:
            self._session.fail()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit the results of this training. After an error nothing is saved."""
        if kind is None:
            self._session.finish()
        else:
            self._session.fail()

    @property
    def done(self) -> int:
        """Number of finished steps."""
        return self._session.step

    def steps(self, total: int) -> Iterator[int]:
        """Yield step numbers from `done` up to `total`; the code between two of them is one step.

        Random generators are restored with the first step: create iterators before.
        """
        session, resumed = self._session, self._resumed
        session.expect_steps(total)
        ended = resumed is not None and resumed.ended
        if resumed is not None and (self._seed is None or ended):
            rng_state.restore(resumed.per_rank["chance"])
        self._resumed = None
        session.reset_timers()
        while session.step < total and not ended:
            if self._seed is not None:
                rng_state.seed(self._seed, session.step, session.ranks.rank)
            self._untouched = True
            yield session.step
            self._untouched = False
            self._after(last=session.step + 1 == total)

    def batches(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield the same batches, and measure the wait for each.

        The iterator is created by this call, not with the first batch. A warning says if batches
        of an IterableDataset are not saved.
        """
        dataset = getattr(batches, "dataset", batches)
        if isinstance(dataset, IterableDataset) and not self._saves(batches, dataset):
            self._session.program.warn_user(
                f"where training stands in {type(dataset).__name__} is not saved: if this machine "
                "ends, its batches begin anew, and are not those of an uninterrupted training. "
                "Give Run(data=...) what has a state_dict(): the dataset, or torchdata's "
                "StatefulDataLoader"
            )
        iterator = iter(batches)

        def measured() -> Iterator[T]:
            while True:
                began_s = time.monotonic()
                first, self._untouched = self._untouched, False
                if first:  # of the step: nothing has changed since the last one
                    self._session.idle(keeps=not self._per_rank_objects)
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
                finally:
                    if first:
                        self._session.busy()
                self._session.progress.add_data_wait(time.monotonic() - began_s)
                yield batch

        return measured()

    def report(self, loss: float | Tensor, tokens: int = 0) -> None:
        """Report this rank's loss of the step, and its number of tokens."""
        self._losses = loss, tokens

    @contextmanager
    def evaluation(self, *, at_start: bool = False) -> Iterator[None]:
        """Say that nothing changes that is saved before the block ends.

        For what may take long between two steps: an evaluation, a generation of samples. If the
        machine ends meanwhile, all steps that are done are saved and the program ended. At the end
        of a step, that step is done, and the block is not repeated. With `at_start` it is the first
        thing in a step, or follows the last one, and is repeated on the next machine: for an
        evaluation whose result is used, as by ReduceLROnPlateau. All ranks enter the block, also
        those that have nothing to do in it.
        """
        self._session.idle(ahead=None if at_start else self._loss_of_step)
        try:
            yield
        finally:
            self._session.busy()

    def save(self) -> None:
        """Save now, in addition to the job's interval; call it on all ranks, between two steps."""
        self._session.save("program")

    def _saves(self, *values: Any) -> bool:
        saved = [*self._per_rank_objects.values(), *self._objects.values()]
        return any(value is one for value in values for one in saved)

    def _loss_of_step(self) -> tuple[float | None, int]:
        loss, tokens = self._losses
        return (loss.detach().item() if isinstance(loss, Tensor) else loss), tokens

    def _after(self, *, last: bool) -> None:
        loss, tokens = self._loss_of_step()
        self._losses = None, 0
        match self._session.after_step(loss, tokens):
            case NextAction.FENCED:
                self._session.exit_fenced()
            case _ if last:
                pass  # the final state follows
            case NextAction.LEAVE:
                self._session.exit_saved()
            case NextAction.SAVE:
                self._session.save()

    def _collect(self) -> Any:
        return {name: one.state_dict() for name, one in self._objects.items()}

    def _collect_own(self) -> Any:
        per_rank = {name: one.state_dict() for name, one in self._per_rank_objects.items()}
        return {**per_rank, "chance": self._session.rng or rng_state.capture()}

    def _restore(self, resumed: Resumed) -> None:
        """Raises ValueError for the checkpoint of another program."""
        for ours, theirs in (
            (self._objects, resumed.shared),
            (self._per_rank_objects, resumed.per_rank),
        ):
            if missing := ours.keys() - theirs.keys():
                raise ValueError(
                    f"the checkpoint of step {resumed.step} has no {', '.join(sorted(missing))}: "
                    "give what it was saved with, or start a new job"
                )
            for name, one in ours.items():
                one.load_state_dict(theirs[name])
