"""What became of the machines that this fleet has asked for: facts about places, for whoever
decides where to ask next. Nothing is judged here."""

from __future__ import annotations

from dataclasses import dataclass, field

from spotd.states import LeaveReason, Outcome

DAYS = 30.0  # what is longer ago says little of a pool that changes
LOSSES = frozenset({LeaveReason.PREEMPTED, LeaveReason.LOST})


@dataclass(frozen=True)
class Before:
    """What is on record of the job that is to succeed before another begins. Time in microseconds
    since the epoch, 0 while it goes on."""

    name: str
    outcome: Outcome | None = None
    outcome_text: str = ""
    finished_at_us: int = 0


@dataclass(frozen=True, slots=True)
class Stay:
    """One machine that was asked for, as far as it has come; each time 0 where that has not been.

    `until_us` is up to when it is known to have lived: its end, as decided, or when it was last
    seen or heard. `warned_at_us` is of the first notice that takes it away and stands. One that
    goes on in another attempt is another stay from then on, which says nothing of coming up: up and
    trained are 0.
    """

    node_id: str
    offer_key: str
    asked_at_us: int
    refused: str = ""  # class name in providers.base; "": it was not
    began_at_us: int = 0  # its cloud had it
    up_at_us: int = 0  # its agent spoke
    trained_at_us: int = 0  # its first step
    until_us: int = 0
    warned_at_us: int = 0
    left: LeaveReason | None = None  # None: it lives on

    @property
    def lost(self) -> bool:
        """It was taken away, or fell silent for good: nobody here wanted that."""
        return self.left in LOSSES


@dataclass(frozen=True)
class Past:
    """The newest stays of those asked for since `since_us`, and of those that live, oldest first.
    One object for as long as nothing is read again, so that what follows from it can be kept."""

    stays: tuple[Stay, ...] = ()
    since_us: int = 0
    read_at_us: int = 0
    # What was reckoned of it before, by whoever reckons: it follows from the rest.
    kept: dict[str, object] = field(default_factory=dict, compare=False, repr=False)


UNKNOWN = Past()
