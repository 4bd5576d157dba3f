"""`spotctl shadow`: what spotd would have saved on another scheduler's history."""

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
from spotd.cli.local_time import instant
from spotd.cli.render import (
    Column,
    Output,
    emit,
    output_option,
    print_message,
    print_table,
    print_text,
)

if TYPE_CHECKING:
    from spotd.history.external_history import History
    from spotd.history.shadow import Shadow

_DOCS = "docs/advice.md has the formats, with an example"
_MAX_BYTES = 256 << 20
_COLUMNS = (
    Column("JOB", rank=0),
    Column("WHEN"),
    Column("ENDED"),
    *(Column(title, right=True, rank=2) for title in ("GAP", "MINUTES", "STEPS")),
    Column("DOLLARS", right=True, rank=0),
    Column("NOT KNOWN", wrap=True),
)


class HistoryFormat(str, Enum):
    AUTO = "auto"
    SPOTD = "spotd"
    SKYPILOT = "skypilot"
    DSTACK = "dstack"
    CSV = "csv"
    JSONL = "jsonl"


def shadow(
    log: Path = typer.Option(
        ..., "--log", metavar="FILE", help="The history file, or - for stdin."
    ),
    form: HistoryFormat = typer.Option(
        HistoryFormat.AUTO,
        "--format",
        metavar="FORM",
        help="auto, spotd, skypilot, dstack, csv or jsonl.",
    ),
    usd_per_hour: float | None = typer.Option(
        None, "--usd-per-hour", min=0, help="Price of a job's machines, if the log has none."
    ),
    every: str = typer.Option(
        "", "--every", metavar="DURATION", help="Interval between spotd's saves."
    ),
    checkpoint_gb: float | None = typer.Option(
        None,
        "--checkpoint-gb",
        min=0,
        max=1e6,
        help="Size of a save; without it the cost of saves is unknown.",
    ),
    output: Output = output_option(),
) -> None:
    """Estimate what spotd would have saved or lost on another scheduler's history. Needs no daemon.

    Minutes, steps and dollars are ranges, from the worst to the best case for spotd. Below 0 spotd
    would have been worse; "?" means that the log does not contain it. Every assumption is
    printed. See docs/advice.md for the formats.

    \b
    Example:
      spotctl shadow --log runs.csv --checkpoint-gb 96
      spotctl shadow --log sky-events.json --format skypilot --usd-per-hour 19.93
    """
    from spotd.history.shadow import CADENCE_S, ShadowAssumptions
    from spotd.history.shadow import shadow as compute_shadow

    every_s = duration_s(every, "--every", "90s") if every else CADENCE_S
    if every_s <= 0:
        raise UserError("--every: must be more than 0", "--every 90s", ExitCode.USAGE)
    history = read_history(log, form.value, usd_per_hour)
    if not (history.attempts or history.missing):
        raise UserError(f"{log} has no machines of any job", _DOCS, ExitCode.USAGE)
    result = compute_shadow(history.attempts, ShadowAssumptions(every_s, checkpoint_gb))
    data = _data(result=result, history=history, every_s=every_s, checkpoint_gb=checkpoint_gb)
    emit(data, output, lambda: _print(data), "job")


def read_history(path: Path, form: str, usd_per_h: float | None) -> History:
    """Read a history log. Raises UserError."""
    from spotd.history.external_history import HistoryError, guess_format, read_history

    try:
        raw = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise UserError(message, "name a file, or - for stdin", ExitCode.USAGE) from None
    if len(raw) > _MAX_BYTES:
        message = f"{path} has more than {_MAX_BYTES >> 20} MiB"
        raise UserError(message, "give it in parts, whole jobs in each", ExitCode.USAGE)
    try:
        content = raw.decode("utf-8-sig")
        form = guess_format(path.name, content) if form == HistoryFormat.AUTO.value else form
        return read_history(form, content, usd_per_h)
    except (HistoryError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a history: {error}", _DOCS, ExitCode.USAGE) from None


def _data(
    result: Shadow, history: History, every_s: float, checkpoint_gb: float | None
) -> dict[str, Any]:
    from spotd.history.shadow import FIGURES

    return {
        "apiVersion": "spotd/v1",
        "kind": "Shadow",
        "jobs": result.jobs,
        "trained_hours": round(result.hours, 4),
        "every_s": every_s,
        "checkpoint_gb": checkpoint_gb,
        "saved": {
            "minutes": asdict(result.minutes),
            "steps": asdict(result.steps),
            "usd": asdict(result.usd),
        },
        "saves": {"minutes": asdict(result.saves_minutes), "usd": asdict(result.saves_usd)},
        "items": [
            {
                "job": interruption.job,
                "at": _iso(interruption.at_us),
                "ended": interruption.end.value,
                "where": interruption.where,
                "gap_s": interruption.gap_s,
                "minutes": asdict(interruption.minutes),
                "steps": asdict(interruption.steps),
                "usd": asdict(interruption.usd),
                "not_known": list(interruption.notes),
            }
            for interruption in result.interruptions
        ],
        "unfinished": list(result.open),
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
        print_table(_COLUMNS, [_row(row) for row in data["items"]])
        print()
    jobs, hours, interruptions = data["jobs"], data["trained_hours"], len(data["items"])
    print_text(f"{jobs} jobs, {hours:,.1f} h, {interruptions} interruptions")
    save_minutes, save_usd = _interval(saves["minutes"]), _interval(saves["usd"])
    print_text(f"spotd's own saves: {save_minutes} minutes, {save_usd} dollars")
    print_text(
        f"spotd would have saved {_interval(saved['minutes'])} minutes, "
        f"{_interval(saved['steps'])} steps, {_interval(saved['usd'])} dollars "
        "(below 0: lost; ?: not known)"
    )
    for text in data["missing"]:
        print_text(f"not counted: {text}")
    if data["unfinished"]:
        print_text(f"not over in the log: {', '.join(data['unfinished'])}")
    for text in data["assumed"]:
        print_message(f"assumed: {text}")


def _row(row: dict[str, Any]) -> list[str]:
    return [
        row["job"],
        instant(row["at"], "minutes"),
        row["ended"],
        span(row["gap_s"]),
        *(_interval(row[key]) for key in ("minutes", "steps", "usd")),
        "; ".join(row["not_known"]) or "-",
    ]


def _interval(interval: dict[str, float | None]) -> str:
    low, high = (_figure(interval[end]) for end in ("low", "high"))
    return low if low == high else f"{low} to {high}"


def _figure(value: float | None) -> str:
    if value is None:
        return "?"
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}"
    return text if text not in ("-0.0", "0.0") else "0"
