"""Format values for people: ages, money, sizes; and make foreign text harmless."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from providers.dollars import format_usd

money = format_usd


def clean(text: object) -> str:
    """`text` on one line, without anything that could steer a terminal or reorder what is read."""
    return "".join(c if c.isprintable() else _visible(c) for c in str(text))


def _visible(char: str) -> str:
    return " " if char.isspace() else "\N{MIDDLE DOT}"


def seconds_since(iso: str | None, now: datetime | None = None) -> float | None:
    """Age of an ISO time in seconds; None when there is none."""
    if not iso:
        return None
    then = datetime.fromisoformat(iso)
    return ((now or datetime.now(UTC)) - then).total_seconds()


def span(seconds: float | None) -> str:
    """A duration in at most two units: 12s, 5m, 3h20m, 2d4h."""
    if seconds is None:
        return "-"
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 600:
        return _two(whole, 60, "m", 1, "s")
    if whole < 3600:
        return f"{whole // 60}m"
    return _two(whole, 3600, "h", 60, "m") if whole < 86400 else _two(whole, 86400, "d", 3600, "h")


def _two(seconds: int, big_s: int, big: str, small_s: int, small: str) -> str:
    rest = seconds % big_s // small_s
    return f"{seconds // big_s}{big}" + (f"{rest}{small}" if rest else "")


def age(iso: str | None) -> str:
    """Return how long ago that was, in words."""
    return span(seconds_since(iso))


def spent(usd: float, cap_usd: float | None, running: str = "") -> str:
    """Return what a job cost and its budget; its last save comes on top."""
    text = money(usd) + running
    if not cap_usd:
        return text
    if usd <= cap_usd:
        return f"{text}; it is stopped at {money(cap_usd)}"
    more = money(usd - cap_usd)
    return f"{text}: stopped at {money(cap_usd)}, saving and giving back cost {more} more"


def percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{fraction * 100:.1f} %"


def size(count: float) -> str:
    """Bytes in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def place(where: dict[str, Any]) -> str:
    """Return provider/zone as labelled everywhere; machines of a local cloud are marked."""
    local = " (local)" if where["local"] else ""
    return f"{where['provider']}/{where['zone'] or where['region']}{local}"


def places(wheres: list[dict[str, Any]]) -> str:
    """Return a job's places, each once, with the number of machines if there are several."""
    counts: dict[str, int] = {}
    for where in wheres:
        counts[place(where)] = counts.get(place(where), 0) + 1
    parts = [name if count == 1 else f"{name} x{count}" for name, count in counts.items()]
    return ", ".join(parts) or "-"
