"""Format an alert in Slack's Block Kit: what happened, what spotd did, the cost, what to do.

Text of jobs and clouds is not trusted: it must not notify a channel, become a link, or exceed a
limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from providers.dollars import format_microusd
from spotd.alert_sinks.base import Alert
from spotd.domain.events import Event, Severity, with_cause
from spotd.domain.health import ADVICE
from spotd.domain.units import S, format_seconds

# Slack takes 150 characters in a header and 3000 in a section, but all blocks of a message together
# only about 13,000.
HEADER_CHARS = 140
SECTION_CHARS = 2_900
TEXT_CHARS = 1_500
ERROR_CHARS = 400
LINE_CHARS = 240
LINK_CHARS = 400  # a longer link is left out: cut, it would lead nowhere
LINES = 10
COMMANDS = 5

_SEVERITIES = list(Severity)
_MARKS = {
    Severity.DEBUG: "⚪",
    Severity.INFO: "🟢",
    Severity.WARNING: "🟠",
    Severity.ERROR: "🔴",
}
_SEVERITY_WORDS = {severity: severity.value.capitalize() for severity in Severity}
_NOTHING = "Nothing."
# kind -> the command that shows more, of alerts that are about no job
_COMMANDS = {
    "orphan": "spotctl orphans",
    "orphan_held": "spotctl orphans",
    "leftovers_held": "spotctl orphans",
    "budget": "spotctl cost budget",
    "outlier": "spotctl cost budget",
    "quarantine": "spotctl quarantine",
}
_DOCTOR = "spotctl doctor"
_LOGS = "Read `spotctl logs {job}`"
# kind -> (what spotd did, what you must do)
_WORDS = {
    "notice": (
        "Requested a replacement; training continues until it is ready, then saves and moves.",
        _NOTHING,
    ),
    "withdrawn": ("Keeps the machine.", _NOTHING),
    "lost": ("Requests another machine and resumes from the newest checkpoint.", _NOTHING),
    "recovered": ("Requested another machine, and resumed there.", _NOTHING),
    "recovered, from the beginning": (
        "Requested another machine, and started the program there: there was nothing to resume.",
        "Have its checkpoints saved: `spotctl why {job}`, and docs/any-script.md.",
    ),
    "slow": ("Requested a checkpoint.", "If it stays slow: " + _LOGS + "."),
    "crashed": (
        "Terminated the machine; restarts the program while restarts are left.",
        _LOGS + ", and correct the program if it crashes again.",
    ),
    "failed": (
        "Released the machines. Checkpoints are retained.",
        _LOGS + ", correct the cause, and run it again.",
    ),
    "succeeded": ("Terminated the machines.", _NOTHING),
    "succeeded, nothing kept": (
        "Terminated the machines. Nothing of the job was saved.",
        "If its files matter, name their folder in the job file as above, and run it again.",
    ),
    "checkpoint_failed": (
        "Training continues; the next save tries again.",
        "Check that the store can be written and has room: `spotctl doctor`.",
    ),
    "unsaved": (
        "Training continues; the next save tries again.",
        "Check that store and disk have room: `spotctl doctor`. " + _LOGS + ".",
    ),
    "checkpoint_skipped": (
        "Continued from an older checkpoint.",
        "Nothing now; if it happens again, check the store.",
    ),
    "link_refused": (
        "Does not log in to the machine that answers there; keeps trying.",
        "If it continues: check that the image's cloud-init installs the SSH keys it receives.",
    ),
    "unfit": (
        "Terminated the machine before anything ran on it, and requests another one.",
        "Nothing; if the next ones fail the same way, check that the image fits the machine type.",
    ),
    "orphan": (
        "Ended the machine.",
        "If it happens again: check whether another spotd uses the same account and deployment.",
    ),
    "orphan_held": (
        "Ended nothing: it is unknown whether they train.",
        "See `spotctl orphans`; end them with `spotctl orphans end`.",
    ),
    "not_renewed": (
        "Tries again every few minutes.",
        "Check that cloud's credentials: `spotctl doctor`.",
    ),
    "stranded": (
        "Requests no machines from that cloud, and cannot end machines there.",
        "Add its section again and restart spotd, until `spotctl nodes` shows none there.",
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
        "Continues; `spotctl doctor` counts them.",
        "A code: look it up in the cloud's documentation, and update spotd. A right: see the text.",
    ),
    "waits": (
        "Keeps checking every offer that fits.",
        "See what blocks it: `spotctl why {job}`.",
    ),
    "stays": (
        "Repeats the termination every minute.",
        "End the machine in its cloud's own console.",
    ),
    "moved": ("Requested another machine; training continues until it is ready.", _NOTHING),
    "outbid": ("Requested a cheaper machine; training continues until it is ready.", _NOTHING),
    "start_failed": ("Terminated the machine, and requests another one.", _LOGS + "."),
    "yielded": ("Saved, and gave the machine to the other job.", "Nothing; it waits for room."),
    "shrunk": ("Continues with the remaining machines, and requests the others.", _NOTHING),
    "regrouped": ("Continues with all machines.", _NOTHING),
    "budget_stop": (
        "Saves and pauses the job.",
        "Nothing; `spotctl resume {job}` continues it next month.",
    ),
    "quarantine": (
        "Ends no machine that its database does not know.",
        "Check `spotctl orphans`, then run `spotctl quarantine release`.",
    ),
    "safe_mode": (
        "Observes, saves and terminates; launches and starts nothing.",
        "Read the daemon's log; `spotctl safe-mode leave` ends it.",
    ),
    "contested": ("Makes no changes.", "Stop one of the two daemons for good."),
    "database_away": (
        "Decides and launches nothing; running training continues.",
        "Check the database, and the disk that it is on.",
    ),
    "test": ("Sent this message.", _NOTHING),
}
_OTHER = ("Recorded it.", "See `spotctl events {job}`.")

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


def command_of(alert: Alert) -> str:
    """Return the command that shows more about an alert."""
    job = alert.job_name or alert.job_id
    return f"spotctl why {job}" if job else _COMMANDS.get(alert.event.kind, _DOCTOR)


def by_urgency(alerts: Iterable[Alert]) -> list[Alert]:
    """Return failed jobs first, then by severity, then by age."""
    return sorted(
        alerts,
        key=lambda alert: (
            alert.event.kind != "failed",
            -_SEVERITIES.index(alert.event.severity),
            alert.id,
        ),
    )


def worst_of(alerts: Iterable[Alert]) -> Severity:
    """Return the highest severity."""
    return max((alert.event.severity for alert in alerts), key=_SEVERITIES.index)


def payload(
    alerts: Sequence[Alert], mentions: Mapping[Severity, Sequence[str]] | None = None
) -> dict[str, Any]:
    """The body of one message about one alert, or a digest of several.

    `mentions` of the worst severity, such as "<!here>", notify people.
    """
    fallback, blocks = _single(alerts[0]) if len(alerts) == 1 else _digest(alerts)
    mention = " ".join((mentions or {}).get(worst_of(alerts), ()))
    if mention:
        blocks.insert(1, _section(mention))
        fallback = f"{mention} {fallback}"
    return {"text": fallback, "blocks": blocks, "unfurl_links": False, "unfurl_media": False}


def _single(alert: Alert) -> tuple[str, list[dict[str, Any]]]:
    event = alert.event
    job = clean(alert.job_name or alert.job_id, 60)
    text = clean(event.text, TEXT_CHARS)
    did, must = (_for_job(words, job) for words in words_of(event))
    kind = clean(kind_of(event).replace("_", " "), 40)
    title = f"{_MARKS[event.severity]} {job or 'spotd'}: {kind}"
    when = datetime.fromtimestamp(alert.at_us / S, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    error = _code(error_line(event), ERROR_CHARS)
    blocks = [
        _header(title),
        _section(f"*What happened*\n{text}" + (f"\n{error}" if error else "")),
        _section(f"*What spotd did*\n{did}"),
    ]
    cost = _cost(alert)
    if cost:
        blocks.append(_section(f"*What it cost*\n{cost}"))
    blocks.append(_section(f"*What you must do*\n{must}"))
    more = [_code(command_of(alert), 100), _link(alert, "dashboard"), _number(alert), when]
    blocks.append(_context(" · ".join(filter(None, more))))
    told = clean(with_cause(event.text, event.data), LINE_CHARS)
    return f"{title}: {told} ({_number(alert)})", blocks


def _digest(alerts: Sequence[Alert]) -> tuple[str, list[dict[str, Any]]]:
    """The worst first; what has no room is counted."""
    ordered = by_urgency(alerts)
    count = sum(alert.repeats for alert in alerts)
    worst = worst_of(alerts)
    counts = f"{_SEVERITY_WORDS[worst]}: {count} alerts: {_counted(ordered)}"
    title = f"{_MARKS[worst]} {clean(counts, HEADER_CHARS)}"
    numbers = [alert.id for alert in alerts]
    return (
        f"{title} (alerts {min(numbers)} to {max(numbers)})",
        [
            _header(title),
            _section("\n".join(_lines(ordered))),
            _section(f"*What you must do*\n{_advice(ordered)}"),
            _section(f"*To see more*\n{_commands(ordered)}"),
            _context(f"alerts {min(numbers)} to {max(numbers)} · all: `spotctl events`"),
        ],
    )


def _lines(ordered: Sequence[Alert]) -> Iterator[str]:
    """Yield a line for each alert that has room in a section, and the number of the others."""
    room, shown = SECTION_CHARS, 0
    for alert in ordered[:LINES]:
        line = _line(alert)
        room -= len(line) + 1
        if room < 0:
            break
        shown += 1
        yield line
    if shown < len(ordered):
        yield f"… and {len(ordered) - shown} more"


def _line(alert: Alert) -> str:
    job = alert.job_name or alert.job_id
    name = _link(alert, job) or clean(job or "spotd", 60)
    text = clean(alert.event.text, LINE_CHARS).replace("\n", " ")
    error = _code(error_line(alert.event), LINE_CHARS // 2)
    parts = f"{name}: {text}", f"({_number(alert)})", error
    return f"{_MARKS[alert.event.severity]} " + " ".join(filter(None, parts))


def _advice(ordered: Iterable[Alert]) -> str:
    """Return each advice once, for the first job that needs it."""
    commands: dict[str, str] = {}
    for alert in ordered:
        must = words_of(alert.event)[1]
        if must != _NOTHING:
            name = clean(alert.job_name or alert.job_id, 60)
            commands.setdefault(must, _for_job(must, name))
    return "\n".join(list(commands.values())[:3]) or _NOTHING


def _commands(ordered: Iterable[Alert]) -> str:
    """Return a command for each of the most urgent jobs."""
    commands = list(dict.fromkeys(command_of(alert) for alert in ordered))
    lines = [_code(command, 100) for command in commands[:COMMANDS]]
    more = len(commands) - len(lines)
    return "\n".join([*lines, f"… and {more} more"] if more else lines)


def error_line(event: Event) -> str:
    """Return the program's or the cloud's own line of error that the event carries beside its
    text, or ""."""
    cause = event.data.get("cause")
    lines = cause.strip().splitlines() if isinstance(cause, str) else []
    line = lines[-1].strip() if lines else ""
    return "" if line in event.text else line


def _for_job(words: str, job: str) -> str:
    """Return the words with the job's name, or with no name where there is no job."""
    return words.replace(" {job}", f" {job}" if job else "")


def words_of(event: Event) -> tuple[str, str]:
    """Return what spotd did, and what the reader must do."""
    kind = kind_of(event)
    advice = ADVICE.get(kind)
    if kind in _WORDS or advice is None:
        return _WORDS.get(kind, _OTHER)
    return _sentence(advice.does), _sentence(advice.attempt)


def kind_of(event: Event) -> str:
    """Return the kind of event, with what its data say of its outcome."""
    if event.kind == "succeeded" and event.data.get("kept") is False:
        return "succeeded, nothing kept"
    if event.kind == "recovered" and event.data.get("anew") is True:
        return "recovered, from the beginning"
    return event.kind


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _counted(alerts: Iterable[Alert]) -> str:
    """Return how many there are of each kind, in the order of the alerts."""
    counts: dict[str, int] = {}
    for alert in alerts:
        kind = kind_of(alert.event).replace("_", " ")
        counts[kind] = counts.get(kind, 0) + alert.repeats
    kinds = [f"{count} {kind}" for kind, count in list(counts.items())[:4]]
    return ", ".join([*kinds, "…"] if len(counts) > len(kinds) else kinds)


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


def _code(text: str, limit: int) -> str:
    """Return text as code, or "" of none."""
    words = clean(text.replace("`", "'").replace("\n", " "), limit).strip()
    return f"`{words}`" if words else ""


def _link(alert: Alert, label: str) -> str:
    """Return a link to the alert's page in the dashboard, or "" if it has none."""
    target = alert.link.replace("|", "%7C")
    for letter, code in ESCAPES.items():
        target = target.replace(letter, code)
    words = clean(label.replace("|", "/").replace("\n", " "), 60)
    return f"<{target}|{words}>" if 0 < len(target) <= LINK_CHARS and words.strip() else ""


def _header(title: str) -> dict[str, Any]:
    return {"type": "header", "text": {"type": "plain_text", "text": title}}


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": True}}


def _context(text: str) -> dict[str, Any]:
    return {"type": "context", "elements": [{"type": "mrkdwn", "text": text, "verbatim": True}]}
