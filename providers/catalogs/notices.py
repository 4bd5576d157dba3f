"""Time between a preemption notice and the end of the machine, by cloud: dated data of
providers/catalogs/notices.toml, each with its source.

A shorter time that the fleet itself observed takes precedence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from providers.catalogs.price_file import PriceFileError, read_origin, read_tables

__all__ = ["NoticeTime", "PriceFileError", "notice_times", "planned_notice_s", "read_notice_times"]

_KEYS = ("seconds", "claimed")


@dataclass(frozen=True)
class NoticeTime:
    """`seconds` is the documented time, None without documented notices; `claimed` is the range
    (from, to) that guides give, where it differs."""

    dated: str
    source: str
    seconds: float | None
    claimed: tuple[float, float] | None


@cache
def notice_times() -> Mapping[str, NoticeTime]:
    """Return the notice times by cloud. Raises PriceFileError."""
    return read_notice_times(files("providers.catalogs").joinpath("notices.toml").read_text())


def read_notice_times(text: str) -> Mapping[str, NoticeTime]:
    """Parse the TOML. Raises PriceFileError."""
    return read_tables(text, _read)


def planned_notice_s(cloud: str, observed_p10_s: float | None) -> float | None:
    """Return the notice time to plan with, in seconds; None if nothing is known.

    It is the smaller of the documented time and the observed 10th percentile.
    """
    documented = notice_times().get(cloud)
    candidates = [documented.seconds if documented else None, observed_p10_s]
    return min((seconds for seconds in candidates if seconds is not None), default=None)


def _read(cloud: str, table: Mapping[str, Any]) -> NoticeTime:
    dated, source = read_origin(cloud, table, _KEYS)
    seconds, claimed = table.get("seconds"), table.get("claimed")
    if seconds is not None and not _is_time(seconds):
        raise PriceFileError(f"{cloud}.seconds: {seconds!r} is not a time in seconds")
    if claimed is None:
        return NoticeTime(dated, source, seconds, None)
    valid = isinstance(claimed, list) and len(claimed) == 2 and all(_is_time(s) for s in claimed)
    if not valid or claimed[0] > claimed[1]:
        raise PriceFileError(f"{cloud}.claimed: {claimed!r} is not [from, to] in seconds")
    return NoticeTime(dated, source, seconds, (claimed[0], claimed[1]))


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 3600
