"""Durations on the command line, written as in a job file."""

from __future__ import annotations

from spotd.base.errors import ExitCode, UserError


def duration_s(text: str, option: str, example: str = "90s, 15m, 1h30m") -> float:
    """Return the seconds of the value of `option`, parsed as in a job file. Raises UserError."""
    from spotd.spec.quantities import parse_duration_s

    try:
        return parse_duration_s(0 if text == "0" else text)
    except ValueError as error:
        raise UserError(f"{option}: {error}", f"{option} {example}", ExitCode.USAGE) from None
