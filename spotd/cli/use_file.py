"""CSV file of machines in use, hour by hour."""

from __future__ import annotations

import csv
from datetime import datetime, timedelta
from pathlib import Path

from spotd.base.errors import ExitCode, InputError, Problem, UserError
from spotd.money.commitment import HourlyUse

_COLUMNS = {"hour", "on_demand", "spot"}
_HELP = "docs/advice.md has an example"
_MAX = 1_000_000.0


def read_use(path: Path) -> list[HourlyUse]:
    """Read the hours, each of which must follow the one before. Raises UserError."""
    try:
        reader = csv.DictReader(path.read_text(encoding="utf-8-sig").splitlines(), strict=True)
        rows = [(reader.line_num, row) for row in reader]
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise UserError(message, "name a CSV file", ExitCode.USAGE) from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid CSV: {error}", _HELP, ExitCode.USAGE) from None
    if set(reader.fieldnames or ()) != _COLUMNS:
        message = f"{path} has the columns {', '.join(reader.fieldnames or ()) or '(none)'}"
        raise UserError(message, "hour,on_demand,spot", ExitCode.USAGE)
    if not rows:
        raise UserError(f"{path} has no hours", _HELP, ExitCode.USAGE)
    hours: list[HourlyUse] = []
    previous: datetime | None = None
    for line, row in rows:
        try:
            if None in row:
                raise _FieldError("", "it has more fields than the header", "hour,on_demand,spot")
            previous = _hour(row["hour"], previous)
            hours.append(HourlyUse(_count(row, "on_demand"), _count(row, "spot")))
        except _FieldError as wrong:
            name, message, fix = wrong.args
            problem = Problem(name, message, fix, line)
            raise InputError(f"{path} cannot be used:", [problem], _HELP) from None
    return hours


class _FieldError(Exception):
    """A field is invalid; the arguments are column, problem and fix."""


def _hour(text: str | None, previous: datetime | None) -> datetime:
    try:
        at = datetime.fromisoformat(text or "")
    except ValueError:
        raise _FieldError("hour", f"{text!r} is not a time", "2026-01-31T14:00Z") from None
    if at.tzinfo is None:
        raise _FieldError("hour", f"{text!r} has no zone", "write Z for UTC")
    if previous is not None and at - previous != timedelta(hours=1):
        raise _FieldError(
            "hour", f"{text!r} does not follow the hour before", "write unused hours as 0"
        )
    return at


def _count(row: dict[str, str], name: str) -> float:
    try:
        value = float(row[name])
    except (ValueError, TypeError):
        value = -1.0
    if not 0 <= value <= _MAX:
        raise _FieldError(name, f"{row[name]!r} is not a number of machines", "0, or more")
    return value
