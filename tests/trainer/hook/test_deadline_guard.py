"""The guard that ends a program at the last moment, alone and among ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from tests.fixtures.waiting import LIMIT_S, wait_until
from trainer.hook.spotd_hook.deadline_guard import LAST_S, NOWHERE, DeadlineGuard

LONG_S = 1000.0


@dataclass
class Guarded:
    """A program whose rank stands at `at`, and could be saved as it was at `kept` as well."""

    at: int = NOWHERE
    kept: int = NOWHERE
    stops_s: float | None = None
    needed: float = 5.0
    error: str = ""
    left: list[bool] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    rounds: int = 0

    def wait_rounds(self) -> None:
        """Until the guard has decided a few times."""
        enough = self.rounds + 3
        wait_until("it has decided", lambda: self.rounds >= enough)

    def stops_in_s(self) -> float | None:
        return self.stops_s

    def needed_s(self) -> float:
        self.rounds += 1
        return self.needed

    def place(self) -> int:
        return self.at

    def prepare(self, place: int, *, still: bool) -> bool:
        return place == self.kept or (still and place == self.at)

    def leave(self, *, saves: bool) -> int:
        self.left.append(saves)
        if saves and self.error:
            raise RuntimeError(self.error)
        return 75


class Meeting:
    """The exchange between the guards of some ranks, in one process."""

    def __init__(self, ranks: int) -> None:
        self._barrier = threading.Barrier(ranks)
        self._rows: list[list[float]] = [[] for _ in range(ranks)]

    def of(self, rank: int) -> Callable[..., list[list[float]] | None]:
        def rows(numbers: Sequence[float], _: Callable[[float], bool]) -> list[list[float]] | None:
            try:
                self._rows[rank] = list(numbers)
                self._barrier.wait(LIMIT_S)
                gathered = [list(row) for row in self._rows]
                self._barrier.wait(LIMIT_S)
            except threading.BrokenBarrierError as error:
                raise RuntimeError("it has ended") from error
            return gathered

        return rows

    def end(self) -> None:
        self._barrier.abort()


@contextmanager
def guards(*programs: Guarded) -> Iterator[tuple[list[DeadlineGuard], Meeting]]:
    meeting = Meeting(len(programs))
    made = [
        DeadlineGuard(program, rows=meeting.of(rank), end=program.codes.append)
        for rank, program in enumerate(programs)
    ]
    for guard, program in zip(made, programs, strict=True):
        if program.at != NOWHERE:
            guard.idle()
        guard.start()
    try:
        yield made, meeting
    finally:
        for guard in made:
            guard.dismiss()
        meeting.end()


def test_one_rank_saves_when_it_is_time_and_not_before() -> None:
    program = Guarded(at=4, stops_s=LONG_S)
    guard = DeadlineGuard(program, end=program.codes.append)
    guard.idle()
    guard.start()
    program.wait_rounds()
    assert not program.left
    program.stops_s = program.needed - 0.1
    wait_until("it has left", lambda: program.codes == [75])
    assert program.left == [True]


@pytest.mark.parametrize(
    ("other", "saves"),
    [
        pytest.param(Guarded(at=4), True, id="they stand at the same place"),
        pytest.param(Guarded(kept=4), True, id="the other has begun the next step"),
        pytest.param(Guarded(at=3), None, id="the other stands at another place"),
        pytest.param(Guarded(), None, id="the other is in the middle of the step"),
    ],
)
def test_ranks_save_together_what_all_have(other: Guarded, saves: bool | None) -> None:
    """Also where only one of them has heard of the machine's end."""
    first = Guarded(at=4, stops_s=4.0)
    with guards(first, other) as ((guard, _), _meeting):
        if saves:
            wait_until("both have left", lambda: (first.codes, other.codes) == ([75], [75]))
            assert (first.left, other.left) == ([True], [True])
            return
        first.needed = LONG_S  # it is time, in every round
        first.wait_rounds()
        assert (first.left, other.left) == ([], [])
        guard.busy()  # it may go on
        guard.idle()
        first.stops_s = LAST_S
        wait_until("it has left", lambda: first.codes == [75])
        assert first.left == [False], "nothing is said to be saved"


def test_a_rank_whose_other_has_ended_leaves_by_itself_at_the_last_moment() -> None:
    first, other = Guarded(at=4, stops_s=4.0), Guarded(at=3)
    with guards(first, other) as (_, meeting):
        meeting.end()
        first.wait_rounds()
        assert not first.left
        first.stops_s = LAST_S
        wait_until("it has left", lambda: first.codes == [75])
        assert first.left == [False]


def test_after_an_error_head_is_released_nevertheless() -> None:
    program = Guarded(at=4, stops_s=4.0, error="a rank has ended")
    with guards(program):
        wait_until("it has left", lambda: program.codes == [75])
    assert program.left == [True, False]


def test_the_program_does_not_end_otherwise_while_it_is_saved() -> None:
    """As when the ranks that it waits for have ended by the guard already."""
    saving, goes_on = threading.Event(), threading.Event()

    class Slow(Guarded):
        def leave(self, *, saves: bool) -> int:
            saving.set()
            assert goes_on.wait(LIMIT_S)
            return super().leave(saves=saves)

    program = Slow(at=4, stops_s=4.0)
    with guards(program) as ([guard], _):
        assert saving.wait(LIMIT_S)
        main = threading.Thread(target=guard.stand_aside)
        main.start()
        main.join(0.2)
        assert main.is_alive()
        goes_on.set()
        main.join(LIMIT_S)
        assert not main.is_alive()
    assert program.codes == [75]
