"""Spot interruption rates claimed by guides: dated data of providers/catalogs/rates.toml, in one
unit.

The unit matters: the same "5 %" is 461 times as often in one source as in another, because of its
period.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import log1p
from typing import Any

from providers.catalogs.price_file import PriceFileError, read_origin, read_tables

__all__ = ["PERIODS_H", "PriceFileError", "RateClaim", "per_hour", "rate_claims", "read_rates"]

PERIODS_H = {"month": 730.0, "day": 24.0}
NO_SPOT = "unverified: provider sells no spot"
_KEYS = ("period", "share", "count", "sellers")


@dataclass(frozen=True)
class RateClaim:
    """A claim about `what`. `claimed` is in the source's own words and unit; `low` to `high` are
    losses per machine-hour. `note` says why the claim is doubtful, or ""."""

    source_name: str
    what: str
    claimed: str
    low: float
    high: float
    dated: str
    source: str
    note: str = ""


def per_hour(share: float, period_h: float) -> float:
    """Return the losses per machine-hour at which a fraction `share` < 1 of machines is lost within
    `period_h`, for a constant hazard: -ln(1 - share) / period. Raises ValueError."""
    if not 0 <= share < 1 or period_h <= 0:
        raise ValueError(f"a share of {share} in {period_h} h is not a rate")
    return -log1p(-share) / period_h


@cache
def rate_claims() -> tuple[RateClaim, ...]:
    """Return the claims of the packaged file, in its order. Raises PriceFileError."""
    return read_rates(files("providers.catalogs").joinpath("rates.toml").read_text())


def read_rates(text: str) -> tuple[RateClaim, ...]:
    """Parse the TOML. Raises PriceFileError."""
    tables = read_tables(text, lambda _name, table: table)
    no_spot = tables.pop("no-spot", {}).get("sellers", [])
    return tuple(row for name, table in tables.items() for row in _rows(name, table, no_spot))


def _rows(name: str, table: Mapping[str, Any], no_spot: Iterable[str]) -> Iterable[RateClaim]:
    dated, source = read_origin(name, table, _KEYS)
    shares, counts = table.get("share", {}), table.get("count", {})
    period = table.get("period")
    if shares and period not in PERIODS_H:
        raise PriceFileError(f"{name}.period: {period!r} is none of {', '.join(PERIODS_H)}")
    for what, pair in shares.items():
        low, high = _pair(f"{name}.share", what, pair)
        if not low <= high < 1:
            raise PriceFileError(f"{name}.share: {what!r} is no [from, to] of 1")
        span = f"{high * 100:.0f} %" if low == high else f"{low * 100:.0f} to {high * 100:.0f} %"
        hours = PERIODS_H[str(period)]
        rates = per_hour(low, hours), per_hour(high, hours)
        note = NO_SPOT if what in no_spot else ""
        yield RateClaim(name, what, f"{span} a {period}", *rates, dated, source, note)
    for what, pair in counts.items():
        losses, hours = _pair(f"{name}.count", what, pair)
        if not hours:
            raise PriceFileError(f"{name}.count: {what!r} is no [losses, hours]")
        claimed = f"{losses:g} in {hours:g} h"
        yield RateClaim(name, what, claimed, losses / hours, losses / hours, dated, source)


def _pair(where: str, what: str, pair: Any) -> tuple[float, float]:
    valid = isinstance(pair, list) and len(pair) == 2
    if not valid or not all(type(n) in (int, float) and n >= 0 for n in pair):
        raise PriceFileError(f"{where}: {what!r} must be a list of two numbers of 0 or more")
    return float(pair[0]), float(pair[1])
