"""What to do with the time that a notice leaves, decided alike by every rank.

Each rank says in a few whole numbers (`words_of`) what it has heard and what a save would take it.
They travel in a sum over the ranks that training makes anyway (`slots`: each rank has places of its
own, so that the sum is the list of what all said), and one step later every rank makes the same
plan of the same numbers (`situation_of`, `plan`): nobody is asked, and no clock is compared.

Standard library only, Python >= 3.10, no clock, nothing remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

# A last snapshot is begun so early that it may take this much longer than was measured.
FACTOR = 1.3
RESERVE_S = 2.0  # kept of the time for the commit, the release and the last words; of less, half
WORDS = 4  # of one rank
_TOP = 2**40  # ms; a sum of places in which all but one are 0 is exact far beyond it


class Action(str, Enum):
    """What is to be done now."""

    TRAIN = "train"  # on, and begin the last snapshot later
    SAVE = "save"  # begin it now
    FINISH = "finish"  # a fresh one does not fit: the upload in flight gets the time
    RELEASE = "release"  # nothing fits: the last durable one is given away at once


LEAVES = frozenset({Action.SAVE, Action.FINISH, Action.RELEASE})


@dataclass(frozen=True)
class DeadlineSituation:
    """In seconds. `left_s` until the machine goes, `step_s` the longest recent step, `save_s` to
    stage and upload a fresh snapshot, `flight_s` what is left of the upload in flight (None: there
    is none). `guessed`: no save was measured yet, and both are a guess. Of several ranks: the least
    time, and the most work."""

    left_s: float
    step_s: float
    save_s: float
    flight_s: float | None = None
    guessed: bool = False


@dataclass(frozen=True)
class StopPlan:
    """`start_in_s` is the latest safe moment for the last snapshot, `end_in_s` when, by what was
    measured, it will be durable, and `margin_s` what is left of the notice then (below 0: nothing
    fits)."""

    action: Action
    start_in_s: float
    end_in_s: float
    margin_s: float
    situation: DeadlineSituation

    @property
    def leaves(self) -> bool:
        """Training is over on these machines."""
        return self.action in LEAVES

    @property
    def admits_save(self) -> bool:
        """A save by the cadence would be out of the way of the last one."""
        now = self.situation
        free = not self.leaves and now.flight_s is None
        return free and self.start_in_s >= FACTOR * now.save_s + now.step_s


def plan(now: DeadlineSituation) -> StopPlan:
    """The last snapshot as late as is safe; else what is in flight; else nothing.

    A fresh snapshot goes out behind the one in flight, so that to begin before that one is through
    gains nothing. Its latest start leaves FACTOR of what it takes; one that fits only if all goes
    as measured is tried all the same: what is in flight gains nothing by less to do, and the steps
    since are lost otherwise. So is one that a mere guess says does not fit: no step is given away
    for a guess, and who saves keeps time to release.
    """
    time_s = now.left_s - min(RESERVE_S, now.left_s / 2)
    flight_s, tries = now.flight_s or 0.0, now.guessed and now.left_s > 0
    takes_s = flight_s + now.save_s
    spare_s = time_s - FACTOR * now.save_s
    if spare_s < FACTOR * flight_s:
        spare_s = min(flight_s, time_s - takes_s)
    if 0 < spare_s >= now.step_s:
        action, start_s, end_s = Action.TRAIN, spare_s, max(spare_s, flight_s) + now.save_s
    elif takes_s <= time_s:
        action, start_s, end_s = Action.SAVE, 0.0, takes_s
    elif now.flight_s is not None and (flight_s <= time_s or tries):
        action, start_s, end_s = Action.FINISH, 0.0, flight_s
    elif tries:
        action, start_s, end_s = Action.SAVE, 0.0, takes_s
    else:
        action, start_s, end_s = Action.RELEASE, 0.0, 0.0
    return StopPlan(action, start_s, end_s, now.left_s - end_s, now)


def words_of(
    left_s: float | None,
    step_s: float,
    save_s: float,
    flight_s: float | None,
    *,
    guessed: bool = False,
) -> tuple[int, int, int, int]:
    """What one rank says, in milliseconds: 0 stands for "nothing heard" and "nothing in flight",
    1 for none left, a save below 0 for a guess. Time is rounded down, work up."""
    heard = 0 if left_s is None else 1 + _ms(left_s)
    flying = 0 if flight_s is None else 2 + _ms(flight_s)
    saving = 1 + _ms(save_s) if save_s > 0 else 0
    return heard, 1 + _ms(step_s), -saving if guessed else saving, flying


def slots(rank: int, size: int, words: Sequence[int]) -> list[int]:
    """This rank's `words` in a row with room for those of all `size` ranks."""
    if not 0 <= rank < size or len(words) != WORDS:
        raise ValueError(f"{len(words)} words of rank {rank} of {size}")
    before = [0] * (rank * WORDS)
    return [*before, *words, *[0] * ((size - 1 - rank) * WORDS)]


def situation_of(summed: Sequence[float]) -> DeadlineSituation | None:
    """What the sum of all ranks' `slots` says; None while nobody has heard of an end."""
    rows = [[int(word) for word in summed[i : i + WORDS]] for i in range(0, len(summed), WORDS)]
    heard = [row[0] - 1 for row in rows if row[0]]
    if not heard:
        return None
    flights = [row[3] - 1 for row in rows if row[3]]
    return DeadlineSituation(
        left_s=min(heard) / 1000,
        step_s=max(row[1] for row in rows) / 1000,
        save_s=max(abs(row[2]) for row in rows) / 1000,
        flight_s=max(flights) / 1000 if flights else None,
        guessed=any(row[2] < 0 for row in rows),
    )


def _ms(seconds: float) -> int:
    """Whole milliseconds, never below 0 and never beyond what a sum takes."""
    return int(min(max(seconds, 0.0) * 1000, _TOP))
