"""A CSV of machines in use, hour by hour."""

from __future__ import annotations

import csv
from datetime import datetime, timedelta
from pathlib import Path

from spotd.base.errors import ExitCode, InputError, Problem, UserError
from spotd.money.commitment import HourlyUse

_COLUMNS = {"hour", "on_demand", "spot"}
_HELP = "docs/advice.md has an example"
_MOST = 1_000_000.0


def read_use(path: Path) -> list[HourlyUse]:
    """Each hour follows the one before it. Raises UserError."""
    try:
        reader = csv.DictReader(path.read_text(encoding="utf-8-sig").splitlines(), strict=True)
        rows = [(reader.line_num, row) for row in reader]
    except OSError as error:
        text = f"{path} cannot be read: {error.strerror}"
        raise UserError(text, "name a CSV file", ExitCode.USAGE) from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no CSV: {error}", _HELP, ExitCode.USAGE) from None
    if set(reader.fieldnames or ()) != _COLUMNS:
        text = f"{path} has the columns {', '.join(reader.fieldnames or ()) or 'of nothing'}"
        raise UserError(text, "hour,on_demand,spot", ExitCode.USAGE)
    if not rows:
        raise UserError(f"{path} has no hours", _HELP, ExitCode.USAGE)
    found: list[HourlyUse] = []
    before: datetime | None = None
    for line, row in rows:
        try:
            if None in row:
                raise _Wrong("", "it has more fields than the header", "hour,on_demand,spot")
            before = _hour(row["hour"], before)
            found.append(HourlyUse(_count(row, "on_demand"), _count(row, "spot")))
        except _Wrong as wrong:
            name, text, fix = wrong.args
            problem = Problem(name, text, fix, line)
            raise InputError(f"{path} cannot be used:", [problem], _HELP) from None
    return found


class _Wrong(Exception):
    """Column, text, fix."""


def _hour(text: str | None, before: datetime | None) -> datetime:
    try:
        at = datetime.fromisoformat(text or "")
    except ValueError:
        raise _Wrong("hour", f"{text!r} is no time", "2026-01-31T14:00Z") from None
    if at.tzinfo is None:
        raise _Wrong("hour", f"{text!r} has no zone", "write Z for UTC")
    if before is not None and at - before != timedelta(hours=1):
        raise _Wrong(
            "hour", f"{text} does not follow the hour before", "write hours of no use as 0"
        )
    return at


def _count(row: dict[str, str], name: str) -> float:
    try:
        value = float(row[name])
    except (ValueError, TypeError):
        value = -1.0
    if not 0 <= value <= _MOST:
        raise _Wrong(name, f"{row[name]!r} is no number of machines", "0, or more")
    return value
