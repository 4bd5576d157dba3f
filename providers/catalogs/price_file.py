"""Parse files of dated list prices: a table per cloud with its date, source and price tiers."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Mapping
from datetime import date
from itertools import pairwise
from math import inf
from typing import Any, TypeVar

T = TypeVar("T")
Tiers = tuple[tuple[float, int], ...]


class PriceFileError(ValueError):
    """Invalid content of a price file: where, and what is wrong."""


def read_tables(text: str, read: Callable[[str, Mapping[str, Any]], T]) -> dict[str, T]:
    """Parse TOML and apply `read` to the table of each cloud. Raises PriceFileError."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PriceFileError(f"not TOML: {error}") from None
    for cloud, table in document.items():
        if not isinstance(table, dict):
            raise PriceFileError(f"{cloud}: must be a table")
    return {cloud: read(cloud, table) for cloud, table in document.items()}


def read_origin(cloud: str, table: Mapping[str, Any], known: Collection[str]) -> tuple[str, str]:
    """Return (date, source) of a table. Raises PriceFileError, also for keys other than `known`."""
    if unknown := sorted(table.keys() - {"dated", "source", *known}):
        raise PriceFileError(f"{cloud}.{unknown[0]}: unknown key")
    dated, source = table.get("dated"), table.get("source")
    if type(dated) is not date:
        raise PriceFileError(f"{cloud}.dated: {dated!r} is not a date; write one like 2026-11-21")
    if not isinstance(source, str) or not source.strip():
        raise PriceFileError(f"{cloud}.source: must say where the figures come from")
    return str(dated), source


def read_tiers(where: str, rows: Any) -> Tiers:
    """Return (upper limit in GB per month, micro-USD per GB), ascending; the last has no limit.
    Raises PriceFileError."""
    if not isinstance(rows, list) or not rows:
        raise PriceFileError(f"{where}: must be a list of [up to GB, USD a GB]")
    tiers = []
    for row in rows:
        if not isinstance(row, list) or len(row) != 2 or not isinstance(row[0], int | float):
            raise PriceFileError(f"{where}: {row!r} is no [up to GB, USD a GB]")
        tiers.append((float(row[0]), read_microusd(where, row[1])))
    bounds = [0.0, *(upper_gb for upper_gb, _ in tiers)]
    if bounds[-1] != inf or not all(lower < upper for lower, upper in pairwise(bounds)):
        raise PriceFileError(f"{where}: must ascend, and end with inf")
    return tuple(tiers)


def read_microusd(where: str, usd: Any) -> int:
    """Convert US dollars to micro-USD. Raises PriceFileError."""
    if isinstance(usd, bool) or not isinstance(usd, int | float) or not 0 <= usd < 10:
        raise PriceFileError(f"{where}: {usd!r} is not a price per GB in US dollars")
    return round(usd * 1_000_000)


def microusd_of(tiers: Tiers, gb: float) -> int:
    """Return the cost of `gb` in one month. Raises ValueError for less than 0."""
    if gb < 0:
        raise ValueError(f"{gb} GB is less than 0")
    total, lower_gb = 0.0, 0.0
    for upper_gb, microusd_per_gb in tiers:
        total += max(0.0, min(gb, upper_gb) - lower_gb) * microusd_per_gb
        lower_gb = upper_gb
    return round(total)
