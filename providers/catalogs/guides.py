"""GPU prices claimed by guides: dated rows of providers/catalogs/guides.toml, each with its source.

Discounts are computed here, not copied from the guide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from providers.catalogs.price_file import PriceFileError, read_origin, read_tables
from providers.dollars import format_usd

__all__ = ["PriceClaim", "PriceFileError", "claims", "largest_discounts", "read_claims"]

NO_SPOT = "unverified: provider sells no spot"
_SELLERS = "no-spot"


@dataclass(frozen=True)
class PriceClaim:
    """US dollars per GPU-hour. `note` says why the claim is doubtful or superseded; "" for
    neither."""

    seller: str
    accelerator: str
    on_demand_usd: float
    spot_usd: float
    dated: str
    source: str
    note: str = ""

    @property
    def discount(self) -> float:
        """Discount as a fraction of the on-demand price."""
        return 1 - self.spot_usd / self.on_demand_usd


@cache
def claims() -> tuple[PriceClaim, ...]:
    """Return the claims of the packaged file, in its order. Raises PriceFileError."""
    return read_claims(files("providers.catalogs").joinpath("guides.toml").read_text())


def read_claims(text: str) -> tuple[PriceClaim, ...]:
    """Parse the TOML. Raises PriceFileError."""
    tables = read_tables(text, lambda _name, table: table)
    no_spot = _sellers(tables.pop(_SELLERS, {}))
    rows = [row for name, table in tables.items() for row in _rows(name, table)]
    return tuple(replace(row, note=_note(row, rows, no_spot)) for row in rows)


def largest_discounts(price_claims: Iterable[PriceClaim]) -> dict[str, PriceClaim]:
    """Return the claim with the largest discount for each GPU; superseded claims do not count."""
    best: dict[str, PriceClaim] = {}
    for claim in price_claims:
        current = best.get(claim.accelerator)
        if not claim.note.startswith("superseded") and (
            current is None or claim.discount > current.discount
        ):
            best[claim.accelerator] = claim
    return best


def _note(row: PriceClaim, rows: Iterable[PriceClaim], no_spot: frozenset[str]) -> str:
    if row.seller in no_spot:
        return NO_SPOT
    key = (row.seller, row.accelerator)
    newer = [
        other
        for other in rows
        if (other.seller, other.accelerator) == key and other.dated > row.dated
    ]
    if not newer:
        return ""
    newest = max(newer, key=lambda other: other.dated)
    return (
        f"superseded: {format_usd(newest.spot_usd)} of {format_usd(newest.on_demand_usd)} since "
        f"{newest.dated}"
    )


def _rows(name: str, table: Mapping[str, Any]) -> Iterable[PriceClaim]:
    dated, source = read_origin(name, table, ("prices",))
    prices = table.get("prices")
    if not isinstance(prices, list) or not prices:
        raise PriceFileError(f"{name}.prices: must be a list of [seller, GPU, on demand, spot]")
    for row in prices:
        valid = isinstance(row, list) and len(row) == 4 and all(isinstance(t, str) for t in row[:2])
        if not valid or not all(_is_price(usd) for usd in row[2:]) or row[3] > row[2]:
            raise PriceFileError(
                f"{name}.prices: {row!r} is no [seller, GPU, on demand, spot] in US dollars"
            )
        yield PriceClaim(row[0], row[1], float(row[2]), float(row[3]), dated, source)


def _sellers(table: Mapping[str, Any]) -> frozenset[str]:
    if not table:
        return frozenset()
    read_origin(_SELLERS, table, ("sellers",))
    sellers = table.get("sellers")
    if not isinstance(sellers, list) or not all(isinstance(name, str) for name in sellers):
        raise PriceFileError(f"{_SELLERS}.sellers: must be a list of names")
    return frozenset(sellers)


def _is_price(usd: Any) -> bool:
    return isinstance(usd, int | float) and not isinstance(usd, bool) and 0 < usd < 1000
