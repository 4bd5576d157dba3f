"""Decide how to use the time that a notice leaves; every rank makes the same decision.

Each rank encodes its situation in a few integers (`encode_situation`). They travel in a sum over
the ranks that training computes anyway: each rank has its own positions in the list (`rank_slots`),
so the sum is the list of all ranks' values. One step later every rank makes the same plan from the
same numbers (`combine_situations`, `plan`), without a request and without comparing clocks.

Standard library only, Python >= 3.10. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

# The last snapshot starts early enough to take this many times the measured duration.
SAFETY_FACTOR = 1.3
RESERVE_S = 2.0  # for commit, release and last messages; at most half of the time
VALUES_PER_RANK = 4
_MAX_MS = 2**40  # far below the largest exact float


class Action(str, Enum):
    """The action to take now."""

    TRAIN = "train"  # continue; the last snapshot begins later
    SAVE = "save"  # begin the last snapshot now
    FINISH = "finish"  # a new snapshot does not fit: finish the upload in flight
    RELEASE = "release"  # nothing fits: release the last durable checkpoint at once


ENDING_ACTIONS = frozenset({Action.SAVE, Action.FINISH, Action.RELEASE})


@dataclass(frozen=True)
class DeadlineSituation:
    """Times in seconds; of several ranks, the shortest remaining time and the longest work.

    `remaining_s` until the machine ends, `step_s` of the longest recent step, `save_s` to stage and
    upload a new snapshot, `in_flight_s` until the running upload is durable (None: there is none).
    `guessed`: no save was measured yet, and the latter two are guesses.
    """

    remaining_s: float
    step_s: float
    save_s: float
    in_flight_s: float | None = None
    guessed: bool = False


@dataclass(frozen=True)
class StopPlan:
    """A plan for the last save.

    `start_in_s`: latest safe start of the last snapshot. `end_in_s`: when it is expected to be
    durable. `margin_s`: notice time left then (below 0: nothing fits).
    """

    action: Action
    start_in_s: float
    end_in_s: float
    margin_s: float
    situation: DeadlineSituation

    @property
    def ends_training(self) -> bool:
        """Whether training ends on these machines."""
        return self.action in ENDING_ACTIONS

    @property
    def allows_save(self) -> bool:
        """Whether a regular save now would finish before the last one starts."""
        now = self.situation
        free = not self.ends_training and now.in_flight_s is None
        return free and self.start_in_s >= SAFETY_FACTOR * now.save_s + now.step_s


def plan(now: DeadlineSituation) -> StopPlan:
    """Make the last snapshot as late as is safe; else finish the upload in flight; else release.

    A new snapshot is uploaded after the one in flight, so starting it earlier gains nothing. Its
    latest start allows SAFETY_FACTOR times the measured duration. A snapshot that fits only if
    everything goes as measured, or only in the time reserved for the release (a step can take
    longer than those before it), is tried anyway: the upload in flight loses nothing by it, and
    otherwise the steps since then are lost. The same holds if only a guess says that it does not
    fit. A machine that ends before the release costs its successor a wait, and no step.
    """
    usable_s = now.remaining_s - min(RESERVE_S, now.remaining_s / 2)
    in_flight_s, try_anyway = now.in_flight_s or 0.0, now.guessed and now.remaining_s > 0
    needed_s = in_flight_s + now.save_s
    slack_s = usable_s - SAFETY_FACTOR * now.save_s
    if slack_s < SAFETY_FACTOR * in_flight_s:
        slack_s = min(in_flight_s, usable_s - needed_s)
    if 0 < slack_s >= now.step_s:
        action, start_s, end_s = Action.TRAIN, slack_s, max(slack_s, in_flight_s) + now.save_s
    elif needed_s < now.remaining_s:
        action, start_s, end_s = Action.SAVE, 0.0, needed_s
    elif now.in_flight_s is not None and (in_flight_s < now.remaining_s or try_anyway):
        action, start_s, end_s = Action.FINISH, 0.0, in_flight_s
    elif try_anyway:
        action, start_s, end_s = Action.SAVE, 0.0, needed_s
    else:
        action, start_s, end_s = Action.RELEASE, 0.0, 0.0
    return StopPlan(action, start_s, end_s, now.remaining_s - end_s, now)


def encode_situation(
    remaining_s: float | None,
    step_s: float,
    save_s: float,
    in_flight_s: float | None,
    *,
    guessed: bool = False,
) -> tuple[int, int, int, int]:
    """Encode one rank's situation in milliseconds.

    0 stands for "no notice" and "nothing in flight", 1 for no time left, a negative save for a
    guess. Remaining time is rounded down, work up.
    """
    remaining = 0 if remaining_s is None else 1 + _ms(remaining_s)
    in_flight = 0 if in_flight_s is None else 2 + _ms(in_flight_s)
    save = 1 + _ms(save_s) if save_s > 0 else 0
    return remaining, 1 + _ms(step_s), -save if guessed else save, in_flight


def rank_slots(rank: int, size: int, values: Sequence[int]) -> list[int]:
    """Return a row for all `size` ranks with this rank's `values` at its position."""
    if not 0 <= rank < size or len(values) != VALUES_PER_RANK:
        raise ValueError(f"{len(values)} values of rank {rank} of {size}")
    leading_zeros = [0] * (rank * VALUES_PER_RANK)
    return [*leading_zeros, *values, *[0] * ((size - 1 - rank) * VALUES_PER_RANK)]


def combine_situations(summed: Sequence[float]) -> DeadlineSituation | None:
    """Decode the sum of all ranks' `rank_slots`; None if no rank has a notice."""
    rows = [
        [int(value) for value in summed[i : i + VALUES_PER_RANK]]
        for i in range(0, len(summed), VALUES_PER_RANK)
    ]
    remaining = [row[0] - 1 for row in rows if row[0]]
    if not remaining:
        return None
    flights = [row[3] - 1 for row in rows if row[3]]
    return DeadlineSituation(
        remaining_s=min(remaining) / 1000,
        step_s=max(row[1] for row in rows) / 1000,
        save_s=max(abs(row[2]) for row in rows) / 1000,
        in_flight_s=max(flights) / 1000 if flights else None,
        guessed=any(row[2] < 0 for row in rows),
    )


def _ms(seconds: float) -> int:
    """Return whole milliseconds between 0 and the largest exact summand."""
    return int(min(max(seconds, 0.0) * 1000, _MAX_MS))
