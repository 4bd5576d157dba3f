"""Alerts given to a program of the user, on its standard input."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from spotd.alert_sinks.base import Alert, AlertRoute, AlertSink, AlertSinkError
from spotd.domain.events import Severity, with_cause

COMMAND_S = 25.0  # less than the delivery waits for a sink


class CommandRoute(AlertRoute):
    """A program and its arguments; it gets the text of a message on its standard input."""

    kind: Literal["command"]
    command: Annotated[list[str], Field(min_length=1)]

    def build(self, environ: Mapping[str, str]) -> AlertSink:  # noqa: ARG002 - it has no secret
        return CommandSink(tuple(self.command), self.min_severity)


@dataclass(frozen=True)
class CommandSink:
    """Runs `command` for each message. No shell is involved."""

    command: tuple[str, ...]
    min_severity: Severity = Severity.INFO
    paced: bool = True

    def send(self, alerts: Sequence[Alert]) -> None:
        self.send_text("\n".join(_line(alert) for alert in alerts) + "\n")

    def send_text(self, text: str) -> None:
        """Run the program. Raises AlertSinkError unless it ends with 0 in time."""
        try:
            done = subprocess.run(
                self.command,
                input=text.encode(),
                stdout=subprocess.DEVNULL,
                timeout=COMMAND_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise AlertSinkError(f"{self.command[0]} failed: {error}") from None
        if done.returncode:
            raise AlertSinkError(f"{self.command[0]} ended with {done.returncode}")

    def reach(self) -> str:
        """Return whether the program is there; it is not run."""
        return "" if shutil.which(self.command[0]) else f"{self.command[0]} is not an executable"


def _line(alert: Alert) -> str:
    name = alert.job_name or alert.job_id or "spotd"
    times = f", {alert.repeats} times" if alert.repeats > 1 else ""
    severity = alert.event.severity.value
    text = with_cause(alert.event.text, alert.event.data)
    return f"{severity}: {name}: {text} (alert {alert.id}{times})"
