"""What files of dated list prices have in common (providers/catalogs/egress.toml,
providers/catalogs/storage.toml): a table for each cloud, with the day and the source of its
figures, and prices by amount."""

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
    """The file is not what it has to be: where, and what is wrong."""


def read_tables(text: str, read: Callable[[str, Mapping[str, Any]], T]) -> dict[str, T]:
    """What `read` makes of the table of each cloud. Raises PriceFileError."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PriceFileError(f"not TOML: {error}") from None
    for cloud, table in document.items():
        if not isinstance(table, dict):
            raise PriceFileError(f"{cloud}: is no table")
    return {cloud: read(cloud, table) for cloud, table in document.items()}


def read_origin(cloud: str, table: Mapping[str, Any], known: Collection[str]) -> tuple[str, str]:
    """(the day, the source) of a table that has no other keys than `known`. Raises
    PriceFileError."""
    if foreign := sorted(table.keys() - {"dated", "source", *known}):
        raise PriceFileError(f"{cloud}.{foreign[0]}: unknown key")
    dated, source = table.get("dated"), table.get("source")
    if type(dated) is not date:
        raise PriceFileError(f"{cloud}.dated: {dated!r} is no day; write one like 2026-11-21")
    if not isinstance(source, str) or not source.strip():
        raise PriceFileError(f"{cloud}.source: says not where the figures are from")
    return str(dated), source


def read_tiers(where: str, rows: Any) -> Tiers:
    """(up to so many GB of a month, micro-USD a GB), ascending, the last one without an end. Raises
    PriceFileError."""
    if not isinstance(rows, list) or not rows:
        raise PriceFileError(f"{where}: must be a list of [up to GB, USD a GB]")
    found = []
    for row in rows:
        if not isinstance(row, list) or len(row) != 2 or not isinstance(row[0], int | float):
            raise PriceFileError(f"{where}: {row!r} is no [up to GB, USD a GB]")
        found.append((float(row[0]), read_microusd(where, row[1])))
    ends = [0.0, *(end for end, _ in found)]
    if ends[-1] != inf or not all(one < other for one, other in pairwise(ends)):
        raise PriceFileError(f"{where}: must ascend, and end with inf")
    return tuple(found)


def read_microusd(where: str, usd: Any) -> int:
    """Of US dollars. Raises PriceFileError."""
    if isinstance(usd, bool) or not isinstance(usd, int | float) or not 0 <= usd < 10:
        raise PriceFileError(f"{where}: {usd!r} is no price of a GB in US dollars")
    return round(usd * 1_000_000)


def microusd_of(tiers: Tiers, gb: float) -> int:
    """What `gb` of one month cost. Raises ValueError for less than none."""
    if gb < 0:
        raise ValueError(f"{gb} GB is less than nothing")
    total, begin = 0.0, 0.0
    for end, each in tiers:
        total += max(0.0, min(gb, end) - begin) * each
        begin = end
    return round(total)
