"""Saving and resuming for a training loop of one's own, in five lines:

    import spotd_hook                                               # 1

    with spotd_hook.Run(model=model, optimizer=optimizer) as run:   # 2
        for step in run.steps(1000):                                # 3
            loss = train_on(batch_of(step))                         # as before
            run.report(loss)                                        # 4
    # 5: there is no fifth

See docs/any-script.md. Needs torch, Python >= 3.10.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar

from torch import Tensor

from . import rng_state
from .objects import stateful
from .session import Next, Resumed, Session
from .weights import give_weights

T = TypeVar("T")


class Run:
    """Give it everything that training changes and that has a `state_dict()`, by any names. `data`
    is what each rank has of its own, such as a StatefulDataLoader; the rest is the same on all
    ranks, and rank 0's is saved. Random generators are saved with it; with a `seed`, each step
    begins with generators that are a function of (seed, step, rank) instead, which is exact
    whatever workers and iterators draw. `config` is what a checkpoint has to have been made with.
    `any_ranks` says that another number of ranks may go on, because the program keeps its batch
    then: it takes a `seed`, and no `data`.

    It takes over SIGTERM and SIGUSR1, and ends the program (SystemExit) with 75 when the machine
    goes, after a save, and with 76 when another machine has taken over. Without spotd checkpoints
    go to ./checkpoints, where spotd is installed, and else nothing is saved. Raises TypeError for
    an object without state, ValueError, RuntimeError and OSError where nothing could be saved.
    """

    def __init__(
        self,
        *,
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
        self._own = {} if data is None else stateful({"data": data})
        self._seed = seed
        self._losses: tuple[float | Tensor | None, int] = (None, 0)
        self._resumed: Resumed | None = None
        self._session = Session(self._collect, config=config, any_ranks=any_ranks)

    def __enter__(self) -> Run:
        """Waits for its turn and restores. A job that is finished ends the program here."""
        try:
            self._resumed = self._session.begin()
            if self._resumed is not None and self._resumed.weights is not None:
                give_weights(self._objects, self._resumed.weights)
                self._resumed = None
            if self._resumed is not None:
                self._restore(self._resumed)
        except BaseException:
            self._session.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commits the final state: only then is the job done. Nothing of a loop that failed."""
        if kind is None:
            self._session.finish()
        else:
            self._session.close()

    @property
    def done(self) -> int:
        """Steps that are done."""
        return self._session.step

    def steps(self, total: int) -> Iterator[int]:
        """The numbers from `done` up to `total`; what is between two of them is one step. Random
        generators go on from where they were with the first of them: make iterators before."""
        session = self._session
        session.progress.steps = total
        if self._resumed is not None and self._seed is None:
            rng_state.give(self._resumed.own["chance"])
        self._resumed = None
        session.rest()
        while session.step < total:
            if self._seed is not None:
                rng_state.seed(self._seed, session.step, session.ranks.rank)
            yield session.step
            self._after(last=session.step + 1 == total)

    def batches(self, batches: Iterable[T]) -> Iterator[T]:
        """The same ones, of a loader for example; how long each is waited for is measured, and told
        where training is slow for it. Its iterator is made here, and not with the first one."""
        iterator = iter(batches)

        def measured() -> Iterator[T]:
            while True:
                began_s = time.monotonic()
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
                self._session.progress.waited(time.monotonic() - began_s)
                yield batch

        return measured()

    def report(self, loss: float | Tensor, tokens: int = 0) -> None:
        """The loss of this step on this rank, for people and for spotd, and the tokens in it."""
        self._losses = loss, tokens

    def save(self) -> None:
        """A snapshot now, beside those by the job's cadence; on all ranks, between two steps."""
        self._session.save("program")

    def _after(self, *, last: bool) -> None:
        loss, tokens = self._losses
        self._losses = None, 0
        number = loss.detach().item() if isinstance(loss, Tensor) else loss
        match self._session.after(number, tokens):
            case Next.FENCED:
                self._session.leave_fenced()
            case _ if last:
                pass  # the final state follows
            case Next.LEAVE:
                self._session.leave()
            case Next.SAVE:
                self._session.save()

    def _collect(self) -> tuple[Any, Any]:
        own = {name: one.state_dict() for name, one in self._own.items()}
        own["chance"] = {} if self._seed is not None else rng_state.take()
        return {name: one.state_dict() for name, one in self._objects.items()}, own

    def _restore(self, resumed: Resumed) -> None:
        """Raises ValueError for the checkpoint of another program."""
        for ours, theirs in ((self._objects, resumed.shared), (self._own, resumed.own)):
            if missing := ours.keys() - theirs.keys():
                raise ValueError(
                    f"the checkpoint of step {resumed.step} has no {', '.join(sorted(missing))}: "
                    "give what it was saved with, or start a new job"
                )
            for name, one in ours.items():
                one.load_state_dict(theirs[name])
