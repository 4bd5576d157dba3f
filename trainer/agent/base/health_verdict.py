"""A program that hangs, a machine whose GPU has failed or that did not come up well: what the agent
makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from spotd.wire import EXIT_HUNG, EXIT_UNFIT, STARTED, UNWELL, JournalEntry

HUNG = "hung"
GPU = "gpu"
MACHINE = "machine"
MOUNT = "mount"  # of a bucket, which the machine has lost
_CODES = {HUNG: EXIT_HUNG, GPU: EXIT_UNFIT, MACHINE: EXIT_UNFIT, MOUNT: EXIT_UNFIT}


@dataclass(frozen=True)
class HealthVerdict:
    """What runs is ended. `again`: it begins again on this machine, from its last checkpoint; else
    that was its end here."""

    what: str
    text: str
    again: bool

    @property
    def code(self) -> int:
        """What the end is told as."""
        return _CODES[self.what]

    def to_data(self) -> dict[str, Any]:
        return {**asdict(self), "code": self.code}


def unwell_of(data: Mapping[str, Any]) -> HealthVerdict:
    """What `to_data` wrote."""
    return HealthVerdict(str(data["what"]), str(data["text"]), again=bool(data["again"]))


@dataclass(frozen=True)
class HealthHistory:
    """What the journal knows of it: whether a second beginning here has been used up, and what was
    to be ended when the agent was killed over it."""

    restarted: bool = False
    pending: HealthVerdict | None = None


NOTHING = HealthHistory()


def past_of(entries: Sequence[JournalEntry]) -> HealthHistory:
    """From the entries of this boot of the machine."""
    restarted, pending = False, None
    for entry in entries:
        if entry.kind == UNWELL:
            pending = unwell_of(entry.data)
            restarted = restarted or pending.again
        elif entry.kind == STARTED:
            pending = None
    return HealthHistory(restarted, pending)
