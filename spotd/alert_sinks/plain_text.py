"""Alerts as plain text with a title, for services without a format of their own here."""

from __future__ import annotations

from collections.abc import Sequence

from spotd.alert_sinks.base import Alert
from spotd.alert_sinks.slack_blocks import (
    by_urgency,
    command_of,
    error_line,
    kind_of,
    words_of,
    worst_of,
)

LINES = 10


def title_of(alerts: Sequence[Alert]) -> str:
    """Return the severity and what happened, on one line."""
    word = worst_of(alerts).value.capitalize()
    if len(alerts) == 1:
        name = alerts[0].job_name or alerts[0].job_id or "spotd"
        return f"{word}: {name}: {kind_of(alerts[0].event).replace('_', ' ')}"
    return f"{word}: {sum(alert.repeats for alert in alerts)} alerts of spotd"


def text_of(alerts: Sequence[Alert]) -> str:
    """Return the alerts, the most urgent first; those beyond LINES are counted."""
    ordered = by_urgency(alerts)
    parts = [_text(alert) for alert in ordered[:LINES]]
    if len(ordered) > LINES:
        parts.append(f"… and {len(ordered) - LINES} more: spotctl events")
    return "\n\n".join(parts)


def _text(alert: Alert) -> str:
    name = alert.job_name or alert.job_id or "spotd"
    times = f", {alert.repeats} times" if alert.repeats > 1 else ""
    must = words_of(alert.event)[1].replace("{job}", alert.job_name or alert.job_id)
    lines = [
        f"{name}: {alert.event.text} (alert {alert.id}{times})",
        error_line(alert.event),
        f"To do: {must.replace('`', '')}",
        f"More: {command_of(alert)}",
        alert.link,
    ]
    return "\n".join(line for line in lines if line)
