"""How long machines live on after a preemption notice, by their maker: dated data of
providers/catalogs/notices.toml, each with its source. What a fleet has observed itself comes before
it where it is less."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from providers.catalogs.price_file import PriceFileError, read_origin, read_tables

__all__ = ["NoticeTime", "PriceFileError", "notice_times", "planned_s", "read_notice_times"]

_KEYS = ("seconds", "claimed")


@dataclass(frozen=True)
class NoticeTime:
    """`seconds` as documented, None where there are no notices to document; `claimed` is what
    guides say, from and to, where that is something else."""

    dated: str
    source: str
    seconds: float | None
    claimed: tuple[float, float] | None


@cache
def notice_times() -> Mapping[str, NoticeTime]:
    """By make of cloud. Raises PriceFileError."""
    return read_notice_times(files("providers.catalogs").joinpath("notices.toml").read_text())


def read_notice_times(text: str) -> Mapping[str, NoticeTime]:
    """Raises PriceFileError."""
    return read_tables(text, _read)


def planned_s(cloud: str, observed_p10_s: float | None) -> float | None:
    """What may be counted on there: the least of what is documented and of what one of ten machines
    had at most; None where neither is known."""
    told = notice_times().get(cloud)
    known = [told.seconds if told else None, observed_p10_s]
    return min((one for one in known if one is not None), default=None)


def _read(cloud: str, table: Mapping[str, Any]) -> NoticeTime:
    dated, source = read_origin(cloud, table, _KEYS)
    seconds, claimed = table.get("seconds"), table.get("claimed")
    if seconds is not None and not _is_time(seconds):
        raise PriceFileError(f"{cloud}.seconds: {seconds!r} is no time in seconds")
    if claimed is None:
        return NoticeTime(dated, source, seconds, None)
    good = isinstance(claimed, list) and len(claimed) == 2 and all(_is_time(s) for s in claimed)
    if not good or claimed[0] > claimed[1]:
        raise PriceFileError(f"{cloud}.claimed: {claimed!r} is no [from, to] in seconds")
    return NoticeTime(dated, source, seconds, (claimed[0], claimed[1]))


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 3600
