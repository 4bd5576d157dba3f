"""Verdicts that end the running program: hung, GPU failed, machine unfit, mount lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from spotd.wire import EXIT_HUNG, EXIT_UNFIT, STARTED, UNWELL, JournalEntry

HUNG = "hung"
GPU = "gpu"
MACHINE = "machine"
MOUNT = "mount"  # a bucket's mount is lost
_CODES = {HUNG: EXIT_HUNG, GPU: EXIT_UNFIT, MACHINE: EXIT_UNFIT, MOUNT: EXIT_UNFIT}


@dataclass(frozen=True)
class HealthVerdict:
    """A reason to end the program. With `again` it is restarted here from its last checkpoint."""

    what: str
    text: str
    again: bool

    @property
    def code(self) -> int:
        """The exit code that is reported."""
        return _CODES[self.what]

    def to_data(self) -> dict[str, Any]:
        return {**asdict(self), "code": self.code}


def parse_verdict(data: Mapping[str, Any]) -> HealthVerdict:
    """Parse the result of `HealthVerdict.to_data`."""
    return HealthVerdict(str(data["what"]), str(data["text"]), again=bool(data["again"]))


@dataclass(frozen=True)
class HealthHistory:
    """Earlier verdicts of this boot: whether the one restart is used up, and a verdict still to be
    carried out when the previous agent was killed."""

    restarted: bool = False
    pending: HealthVerdict | None = None


NO_HISTORY = HealthHistory()


def health_history(entries: Sequence[JournalEntry]) -> HealthHistory:
    """Collect the history from this boot's journal entries."""
    restarted, pending = False, None
    for entry in entries:
        if entry.kind == UNWELL:
            pending = parse_verdict(entry.data)
            restarted = restarted or pending.again
        elif entry.kind == STARTED:
            pending = None
    return HealthHistory(restarted, pending)


@dataclass(frozen=True)
class HealthWarning:
    """A named verdict, its sentence for people, and its numbers."""

    verdict: str
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_data(self) -> dict[str, Any]:
        """Return the data of a WARNING entry."""
        return {"text": self.text, "verdict": self.verdict, "about": dict(self.data)}
