"""Format an alert in Slack's Block Kit: what happened, what spotd did, the cost, what to do.

Text of jobs and clouds is not trusted: it must not notify a channel, become a link, or exceed a
limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from providers.dollars import format_microusd
from spotd.alert_sinks.base import Alert
from spotd.domain.events import Event, Severity, with_cause
from spotd.domain.lost_work import format_seconds
from spotd.domain.units import S

# Slack takes 150 characters in a header and 3000 in a section, but all blocks of a message together
# only about 13,000.
HEADER_CHARS = 140
TEXT_CHARS = 1_500
LINE_CHARS = 240
LINES = 10

_SEVERITIES = list(Severity)
_MARKS = {
    Severity.DEBUG: "⚪",
    Severity.INFO: "🟢",
    Severity.WARNING: "🟠",
    Severity.ERROR: "🔴",
}
_NOTHING = "Nothing."
_LOGS = "Read `spotctl logs {job}`"
# kind -> (what spotd did, what you must do)
_WORDS = {
    "notice": (
        "Requested a replacement; training continues until it is ready, then saves and moves.",
        _NOTHING,
    ),
    "withdrawn": ("Keeps the machine.", _NOTHING),
    "lost": ("Requests another machine and resumes from the newest checkpoint.", _NOTHING),
    "recovered": ("Requested another machine, and resumed there as told above.", _NOTHING),
    "recovered, from the beginning": (
        "Requested another machine, and started the program there: there was nothing to resume.",
        "Have its checkpoints saved: `spotctl why {job}`, and docs/any-script.md.",
    ),
    "slow": ("Asked for a checkpoint.", "If it stays slow: " + _LOGS + "."),
    "crashed": (
        "Gave the machine back; starts again while restarts are left.",
        _LOGS + ", and correct the program if it crashes again.",
    ),
    "failed": (
        "Released the machines. Checkpoints are retained.",
        _LOGS + ", correct the cause, and run it again.",
    ),
    "succeeded": ("Gave the machines back.", _NOTHING),
    "succeeded, nothing kept": (
        "Gave the machines back. It has saved nothing of the job.",
        "If its files matter, name their folder in the job file as above, and run it again.",
    ),
    "checkpoint_failed": (
        "Training continues; the next save tries again.",
        "See that the store can be written and has room: `spotctl doctor`.",
    ),
    "unsaved": (
        "Training continues; the next save tries again.",
        "See that store and disk have room: `spotctl doctor`. " + _LOGS + ".",
    ),
    "checkpoint_skipped": (
        "Went on from an older checkpoint.",
        "Nothing now; if it happens again, look after the store.",
    ),
    "link_refused": (
        "Does not talk to the machine that answers there; keeps trying.",
        "If it lasts: does the image's cloud-init take the SSH keys it is given?",
    ),
    "unfit": (
        "Gave the machine back before anything ran on it, and asks for another one.",
        "Nothing; if the next ones fail the same way, check that the image fits the machine type.",
    ),
    "orphan": (
        "Ended the machine.",
        "If it happens again: does another spotd use the same account and deployment?",
    ),
    "orphan_held": (
        "Ended nothing: it is unknown whether they train.",
        "Look at `spotctl orphans`; end them with `spotctl orphans end`.",
    ),
    "not_renewed": (
        "Tries again every few minutes.",
        "Look after that cloud's credentials: `spotctl doctor`.",
    ),
    "stranded": (
        "Asks no more of that cloud, and cannot end machines there.",
        "Put its section back and restart spotd, until `spotctl nodes` shows none there.",
    ),
    "plan_rejected": (
        "Wrote nothing; the job stays as it is.",
        "This is a mistake in spotd. Please report it with `spotctl events {job}`.",
    ),
    "alert_route": (
        "Sends its alerts by another route, or to the log.",
        (
            "Make a new webhook, put its URL where the configuration points, restart spotd, "
            "then `spotctl alerts test`."
        ),
    ),
    "remark": (
        "Goes on; `spotctl doctor` counts them.",
        "A code: look it up in the cloud's documentation, and update spotd. A right: see the text.",
    ),
    "test": ("Sent this message.", _NOTHING),
}
_OTHER = ("Put it on record.", "See `spotctl events {job}`.")

_SPECIAL = re.compile(r"<[!@#][^>]*>")
ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def clean(text: str, limit: int) -> str:
    """Text as Slack shows it verbatim, at most `limit` characters once escaped."""
    text = _SPECIAL.sub("", text)
    parts: list[str] = []
    room = limit - 1
    for letter in text:
        part = ESCAPES.get(letter, letter if letter.isprintable() or letter == "\n" else " ")
        room -= len(part)
        if room < 0:
            return "".join(parts) + "…"
        parts.append(part)
    return "".join(parts)


def payload(alerts: Sequence[Alert]) -> dict[str, Any]:
    """The body of one message about one alert, or a digest of several."""
    fallback, blocks = _single(alerts[0]) if len(alerts) == 1 else _digest(alerts)
    return {"text": fallback, "blocks": blocks, "unfurl_links": False, "unfurl_media": False}


def _single(alert: Alert) -> tuple[str, list[dict[str, Any]]]:
    event = alert.event
    job = clean(alert.job_name or alert.job_id, 60)
    text = clean(event.text, TEXT_CHARS)
    did, must = (words.replace("{job}", job) for words in _words(event))
    kind = clean(event.kind.replace("_", " "), 40)
    title = f"{_MARKS[event.severity]} {job or 'spotd'}: {kind}"
    when = datetime.fromtimestamp(alert.at_us / S, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    blocks = [
        {"type": "header", "text": {"type": "plain_text", "text": title}},
        _section(f"*What happened*\n{text}"),
        _section(f"*What spotd did*\n{did}"),
    ]
    if (cause := event.data.get("cause")) and isinstance(cause, str) and cause not in event.text:
        blocks.insert(2, _section(f"*Cause*\n{clean(cause, LINE_CHARS)}"))
    cost = _cost(alert)
    if cost:
        blocks.append(_section(f"*What it cost*\n{cost}"))
    blocks.append(_section(f"*What you must do*\n{must}"))
    blocks.append(_context(f"{_number(alert)} · {when}"))
    told = clean(with_cause(event.text, event.data), LINE_CHARS)
    return f"{title}: {told} ({_number(alert)})", blocks


def _digest(alerts: Sequence[Alert]) -> tuple[str, list[dict[str, Any]]]:
    """The worst first; what has no room is counted."""
    ordered = sorted(alerts, key=lambda a: (-_SEVERITIES.index(a.event.severity), a.id))
    count = sum(alert.repeats for alert in alerts)
    worst = ordered[0].event
    title = clean(f"{_MARKS[worst.severity]} {count} alerts: {_counted(alerts)}", HEADER_CHARS)
    lines = [_line(alert) for alert in ordered[:LINES]]
    if len(ordered) > LINES:
        lines.append(f"… and {len(ordered) - LINES} more")
    numbers = [alert.id for alert in alerts]
    return (
        f"{title} (alerts {min(numbers)} to {max(numbers)})",
        [
            {"type": "header", "text": {"type": "plain_text", "text": title}},
            _section("\n".join(lines)),
            _section(f"*What you must do*\n{_advice(ordered)}"),
            _context(f"alerts {min(numbers)} to {max(numbers)} · all: `spotctl events`"),
        ],
    )


def _line(alert: Alert) -> str:
    told = with_cause(alert.event.text, alert.event.data)
    text = clean(f"{alert.job_name or alert.job_id or 'spotd'}: {told}", LINE_CHARS)
    return f"{_MARKS[alert.event.severity]} {text.replace(chr(10), ' ')} ({_number(alert)})"


def _advice(ordered: Iterable[Alert]) -> str:
    """Return each advice once, for the first job that needs it."""
    commands: dict[str, str] = {}
    for alert in ordered:
        must = _words(alert.event)[1]
        if must != _NOTHING:
            commands.setdefault(must, must.replace("{job}", clean(alert.job_name, 60)))
    return "\n".join(list(commands.values())[:3]) or _NOTHING


def _words(event: Event) -> tuple[str, str]:
    """Return what spotd did, and what the reader must do."""
    kind = event.kind
    if kind == "succeeded" and event.data.get("kept") is False:
        kind = "succeeded, nothing kept"
    elif kind == "recovered" and event.data.get("anew") is True:
        kind = "recovered, from the beginning"
    return _WORDS.get(kind, _OTHER)


def _counted(alerts: Iterable[Alert]) -> str:
    counts: dict[str, int] = {}
    for alert in alerts:
        kind = alert.event.kind.replace("_", " ")
        counts[kind] = counts.get(kind, 0) + alert.repeats
    most = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{count} {kind}" for kind, count in most[:4])


def _number(alert: Alert) -> str:
    times = f", {alert.repeats} times" if alert.repeats > 1 else ""
    return f"alert {alert.id}{times}"


def _cost(alert: Alert) -> str:
    data: Mapping[str, object] = alert.event.data
    losses = []
    if isinstance(seconds := data.get("seconds"), int | float):
        losses.append(f"{seconds:.0f} s without training")
    if isinstance(steps := data.get("steps_lost"), int):
        losses.append(f"{steps} steps to repeat")
    if isinstance(lost_s := data.get("lost_s"), int | float):
        losses.append(f"{format_seconds(lost_s)} of work lost")
    if isinstance(microusd := data.get("lost_microusd"), int) and microusd:
        losses.append(f"{format_microusd(microusd)} for that")
    if alert.spent_microusd:
        losses.append(f"{format_microusd(alert.spent_microusd)} spent on the job so far")
    return clean(", ".join(losses), LINE_CHARS)


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": True}}


def _context(text: str) -> dict[str, Any]:
    return {"type": "context", "elements": [{"type": "mrkdwn", "text": text, "verbatim": True}]}
