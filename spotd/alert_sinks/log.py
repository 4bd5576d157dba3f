"""Alerts as lines of the program's own log."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import structlog

from spotd.alert_sinks.base import Alert, AlertRoute, AlertSink
from spotd.domain.events import Severity, with_cause

log = structlog.get_logger(__name__)


class LogRoute(AlertRoute):
    """Alerts as lines of the daemon's own log."""

    kind: Literal["log"]

    def build(self, environ: Mapping[str, str]) -> AlertSink:  # noqa: ARG002 - it has no secret
        return LogSink(self.min_severity)


@dataclass(frozen=True)
class LogSink:
    """Writes one line per alert."""

    min_severity: Severity = Severity.INFO
    paced: bool = False

    def send(self, alerts: Sequence[Alert]) -> None:
        for alert in alerts:
            write = log.error if alert.event.severity is Severity.ERROR else log.warning
            write(
                with_cause(alert.event.text, alert.event.data),
                alert=alert.event.kind,
                number=alert.id,
                job=alert.job_name or alert.job_id,
                repeats=alert.repeats,
            )

    def send_text(self, text: str) -> None:
        """Write to standard error: spot-reaper's standard output is its report."""
        print(text, file=sys.stderr, flush=True)

    def reach(self) -> str:
        return ""
