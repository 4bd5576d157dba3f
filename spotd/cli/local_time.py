"""Times on the terminal: in the user's zone with its offset, or in UTC with `--utc`."""

from __future__ import annotations

import re
from contextvars import ContextVar
from datetime import UTC, datetime

_UTC: ContextVar[bool] = ContextVar("utc", default=False)
_INSTANT = re.compile(r"(?<!['\"])\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|\+00:00)")


def use_utc(wanted: bool) -> None:
    """Show every time in UTC from now on, or in the user's zone."""
    _UTC.set(wanted)


def instant(iso: str, timespec: str = "seconds") -> str:
    """Return an ISO 8601 time as shown: `2026-11-28 13:05:10+01:00`, in UTC with a "Z"."""
    zone = UTC if _UTC.get() else None
    text = datetime.fromisoformat(iso).astimezone(zone).isoformat(sep=" ", timespec=timespec)
    return text.replace("+00:00", "Z") if zone else text


def clock(iso: str, after: str | None) -> str:
    """Return the time of day alone where it is on the day of `after`, else the whole time."""
    text = instant(iso)
    return text[11:19] if after and instant(after)[:10] == text[:10] else text


def localised(text: str) -> str:
    """Return a text with the UTC times in it as `instant` shows them.

    What is quoted stays: it is what the user wrote.
    """
    return _INSTANT.sub(_shown, text)


def _shown(found: re.Match[str]) -> str:
    try:
        return instant(found[0], "seconds" if found[1] else "minutes")
    except ValueError:  # no time, as the 31st of February
        return found[0]
