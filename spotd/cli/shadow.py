"""`spotctl shadow`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from spotd.base.errors import ExitCode, UserError
from spotd.base.text import span
from spotd.cli.durations import duration_s
from spotd.cli.render import Column, Output, emit, output_option, print_table, say

if TYPE_CHECKING:
    from spotd.history.external_history import History
    from spotd.history.shadow import Shadow

_DOCS = "docs/advice.md has the formats, with an example"
_MOST_BYTES = 256 << 20
_COLUMNS = (
    Column("JOB", cut=True),
    Column("WHEN (UTC)"),
    Column("ENDED"),
    *(Column(title, right=True) for title in ("GAP", "MINUTES", "STEPS", "DOLLARS")),
    Column("NOT KNOWN", cut=True),
)


class Form(str, Enum):
    AUTO = "auto"
    SPOTD = "spotd"
    SKYPILOT = "skypilot"
    DSTACK = "dstack"
    CSV = "csv"
    JSONL = "jsonl"


def shadow(
    log: Path = typer.Option(..., "--log", metavar="FILE", help="The history, or - for stdin."),
    form: Form = typer.Option(
        Form.AUTO, "--format", metavar="FORM", help="auto, spotd, skypilot, dstack, csv or jsonl."
    ),
    usd_per_hour: float | None = typer.Option(
        None, "--usd-per-hour", min=0, help="Of a job's machines, where the log has no price."
    ),
    every: str = typer.Option("", "--every", metavar="DURATION", help="Between spotd's saves."),
    checkpoint_gb: float | None = typer.Option(
        None, "--checkpoint-gb", min=0, max=1e6, help="Of a save; else what it takes is not known."
    ),
    output: Output = output_option(),
) -> None:
    """Say what spotd would have saved or lost on another scheduler's history. Asks no daemon.

    Minutes, steps and dollars are ranges, from what is worst for spotd to what is best; below 0
    spotd would have been worse, and "?" is what the log cannot tell. What is assumed is printed
    line by line. The formats are in docs/advice.md.

    \b
    Example:
      spotctl shadow --log runs.csv --checkpoint-gb 96
      spotctl shadow --log sky-events.json --format skypilot --usd-per-hour 19.93
    """
    from spotd.history.shadow import CADENCE_S, ShadowAssumptions
    from spotd.history.shadow import shadow as reckon

    every_s = duration_s(every, "--every", "90s") if every else CADENCE_S
    if every_s <= 0:
        raise UserError("--every: no time at all", "--every 90s", ExitCode.USAGE)
    history = read_history(log, form.value, usd_per_hour)
    if not (history.stays or history.missing):
        raise UserError(f"{log} has no machines of any job", _DOCS, ExitCode.USAGE)
    found = reckon(history.stays, ShadowAssumptions(every_s, checkpoint_gb))
    data = _data(found, history, every_s, checkpoint_gb)
    emit(data, output, lambda: _print(data), "job")


def read_history(path: Path, form: str, usd_per_h: float | None) -> History:
    """Raises UserError."""
    from spotd.history.external_history import HistoryError, guess, read

    try:
        raw = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        text = f"{path} cannot be read: {error.strerror}"
        raise UserError(text, "name a file, or - for stdin", ExitCode.USAGE) from None
    if len(raw) > _MOST_BYTES:
        text = f"{path} has more than {_MOST_BYTES >> 20} MiB"
        raise UserError(text, "give it in parts, whole jobs in each", ExitCode.USAGE)
    try:
        text = raw.decode("utf-8-sig")
        form = guess(path.name, text) if form == Form.AUTO.value else form
        return read(form, text, usd_per_h)
    except (HistoryError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no history: {error}", _DOCS, ExitCode.USAGE) from None


def _data(
    found: Shadow, history: History, every_s: float, checkpoint_gb: float | None
) -> dict[str, Any]:
    from spotd.history.shadow import FIGURES

    return {
        "apiVersion": "spotd/v1",
        "kind": "Shadow",
        "jobs": found.jobs,
        "trained_hours": round(found.hours, 4),
        "every_s": every_s,
        "checkpoint_gb": checkpoint_gb,
        "saved": {
            "minutes": asdict(found.minutes),
            "steps": asdict(found.steps),
            "usd": asdict(found.usd),
        },
        "saves": {"minutes": asdict(found.saves_minutes), "usd": asdict(found.saves_usd)},
        "items": [
            {
                "job": one.job,
                "at": _iso(one.at_us),
                "ended": one.end.value,
                "where": one.where,
                "gap_s": one.gap_s,
                "minutes": asdict(one.minutes),
                "steps": asdict(one.steps),
                "usd": asdict(one.usd),
                "not_known": list(one.notes),
            }
            for one in found.interruptions
        ],
        "unfinished": list(found.open),
        "missing": list(history.missing),
        "assumed": [
            f"under spotd the job saves each {every_s:g} s, and a death costs at most that"
            + ("" if every_s != 139 else " (the longest pause of the simulation in that page)"),
            *FIGURES,
        ],
    }


def _iso(at_us: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(timespec="seconds")


def _print(data: dict[str, Any]) -> None:
    saved, saves = data["saved"], data["saves"]
    if data["items"]:
        print_table(_COLUMNS, [_row(one) for one in data["items"]])
        print()
    jobs, hours, taken = data["jobs"], data["trained_hours"], len(data["items"])
    print(f"{jobs} jobs, {hours:,.1f} h, {taken} interruptions")
    print(f"spotd's own saves: {_span(saves['minutes'])} minutes, {_span(saves['usd'])} dollars")
    print(
        f"spotd would have saved {_span(saved['minutes'])} minutes, {_span(saved['steps'])} steps, "
        f"{_span(saved['usd'])} dollars (below 0: lost; ?: not known)"
    )
    for text in data["missing"]:
        print(f"not counted: {text}")
    if data["unfinished"]:
        print(f"not over in the log: {', '.join(data['unfinished'])}")
    for text in data["assumed"]:
        say(f"assumed: {text}")


def _row(one: dict[str, Any]) -> list[str]:
    return [
        one["job"],
        one["at"][:16].replace("T", " "),
        one["ended"],
        span(one["gap_s"]),
        *(_span(one[key]) for key in ("minutes", "steps", "usd")),
        "; ".join(one["not_known"]) or "-",
    ]


def _span(found: dict[str, float | None]) -> str:
    low, high = (_figure(found[end]) for end in ("low", "high"))
    return low if low == high else f"{low} to {high}"


def _figure(value: float | None) -> str:
    if value is None:
        return "?"
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}"
    return text if text not in ("-0.0", "0.0") else "0"
