"""Events of the record, with their severity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from providers.base import SPARSE


class Severity(str, Enum):
    """How urgent an event is, and for whom."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Event:
    """An event of the record.

    `alert` sends it to the job's alert routes, or to `route`; `key` coalesces repeats.
    """

    kind: str
    text: str
    node_id: str = ""
    severity: Severity = Severity.INFO
    alert: bool = False
    key: str = ""
    data: Mapping[str, object] = field(default_factory=dict)
    route: str = field(default="", metadata=SPARSE)  # not kept with the event
