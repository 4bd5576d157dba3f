"""Units of time, and durations as text."""

from __future__ import annotations

S = 1_000_000  # microseconds in a second
US_PER_H = 3600 * S
DAY_US = 24 * US_PER_H
MONTH_H = 730  # that a month of storage is prorated by


def format_seconds(seconds: float) -> str:
    """Format a duration with at most three digits, like 1.2 s, 59 s, 2 min or 2.0 h."""
    if seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
