"""Events of the record, with their severity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from providers.base import SPARSE


class Severity(str, Enum):
    """The urgency of an event."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class AuditOutcome(str, Enum):
    """The outcome of a request. Each that changes something is on record twice: before it is tried
    and when it has ended."""

    ASKED = "asked"
    DONE = "done"
    REFUSED = "refused"  # not permitted, not possible, or invalid
    FAILED = "failed"  # by an error of spotd or of something that it needs


def with_cause(text: str, data: Mapping[str, object]) -> str:
    """Return the text of an event with the cause of the failure that it is about."""
    cause = data.get("cause")
    return f"{text} ({cause})" if isinstance(cause, str) and cause and cause not in text else text


@dataclass(frozen=True)
class Event:
    """An event of the record.

    `alert` sends it to the job's alert routes, or to `route`; `key` coalesces repeats. Of a failure
    `data` has the `cause` in one line, and in `tail` the last lines of the output.
    """

    kind: str
    text: str
    node_id: str = ""
    severity: Severity = Severity.INFO
    alert: bool = False
    key: str = ""
    data: Mapping[str, object] = field(default_factory=dict)
    route: str = field(default="", metadata=SPARSE)  # not stored with the event
