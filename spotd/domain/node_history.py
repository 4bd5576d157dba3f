"""The outcome of the machines that this fleet requested: facts for decisions, without judgement."""

from __future__ import annotations

from dataclasses import dataclass, field

from spotd.domain.states import LeaveReason, Outcome

DAYS = 30.0  # what is longer ago says little of a pool that changes
LOSSES = frozenset({LeaveReason.PREEMPTED, LeaveReason.LOST})


@dataclass(frozen=True)
class Prerequisite:
    """The job that has to succeed first. `finished_at_us` is 0 while it runs."""

    name: str
    outcome: Outcome | None = None
    outcome_text: str = ""
    finished_at_us: int = 0


@dataclass(frozen=True, slots=True)
class NodeLifetime:
    """The life of one requested machine so far; a time is 0 if that has not happened.

    `until_us` is the last time at which it is known to have lived: its decided end, or its last
    listing or message. A machine that continues in another attempt has another lifetime from then
    on, in which `trained_at_us` is 0.
    """

    node_id: str
    offer_key: str
    asked_at_us: int
    refused: str = ""  # class name in providers.base; "": it was not
    began_at_us: int = 0  # its cloud had it
    trained_at_us: int = 0  # its first step
    until_us: int = 0
    left: LeaveReason | None = None  # None: it lives on

    @property
    def lost(self) -> bool:
        """Return whether it was preempted or fell silent for good."""
        return self.left in LOSSES


@dataclass(frozen=True)
class FleetHistory:
    """The newest lifetimes of machines requested since `since_us`, and of living ones, oldest
    first.

    The object stays the same until history is read again, so that derived values can be cached.
    """

    stays: tuple[NodeLifetime, ...] = ()
    since_us: int = 0
    read_at_us: int = 0
    # What was reckoned of it before, by whoever reckons: it follows from the rest.
    cache: dict[str, object] = field(default_factory=dict, compare=False, repr=False)


UNKNOWN = FleetHistory()
