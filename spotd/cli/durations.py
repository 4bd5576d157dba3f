"""Durations of the command line: written as in a job file."""

from __future__ import annotations

from spotd.base.errors import ExitCode, UserError


def duration_s(text: str, option: str, example: str = "90s, 15m, 1h30m") -> float:
    """Seconds of what was given for `option`, by the one rule for them. Raises UserError."""
    from spotd.spec.quantities import parse_duration_s

    try:
        return parse_duration_s(0 if text == "0" else text)
    except ValueError as error:
        raise UserError(f"{option}: {error}", f"{option} {example}", ExitCode.USAGE) from None
