"""What guides say that GPUs cost, as claims: dated rows of providers/catalogs/guides.toml, each
with its source. Discounts are computed here, whatever a guide calls them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from providers.catalogs.price_file import PriceFileError, read_origin, read_tables

__all__ = ["Claim", "PriceFileError", "claims", "deepest", "read_claims"]

NO_SPOT = "unverified: provider sells no spot"
_SELLERS = "no-spot"


@dataclass(frozen=True)
class Claim:
    """US dollars of one GPU and hour. `note` says why it is not to be believed, or what came after
    it; "" where nothing is known against it."""

    seller: str
    accelerator: str
    on_demand_usd: float
    spot_usd: float
    dated: str
    source: str
    note: str = ""

    @property
    def discount(self) -> float:
        """As a share of the price on demand."""
        return 1 - self.spot_usd / self.on_demand_usd


@cache
def claims() -> tuple[Claim, ...]:
    """Of the file that comes with us, in its order. Raises PriceFileError."""
    return read_claims(files("providers.catalogs").joinpath("guides.toml").read_text())


def read_claims(text: str) -> tuple[Claim, ...]:
    """Raises PriceFileError."""
    tables = read_tables(text, lambda _name, table: table)
    without = _sellers(tables.pop(_SELLERS, {}))
    rows = [row for name, table in tables.items() for row in _rows(name, table)]
    return tuple(replace(row, note=_note(row, rows, without)) for row in rows)


def deepest(found: Iterable[Claim]) -> dict[str, Claim]:
    """By GPU, the seller with the largest discount; what came after another row counts alone."""
    best: dict[str, Claim] = {}
    for one in found:
        before = best.get(one.accelerator)
        if not one.note.startswith("superseded") and (
            before is None or one.discount > before.discount
        ):
            best[one.accelerator] = one
    return best


def _note(row: Claim, rows: Iterable[Claim], without: frozenset[str]) -> str:
    if row.seller in without:
        return NO_SPOT
    key = (row.seller, row.accelerator)
    newer = [o for o in rows if (o.seller, o.accelerator) == key and o.dated > row.dated]
    if not newer:
        return ""
    last = max(newer, key=lambda one: one.dated)
    return f"superseded: ${last.spot_usd:.2f} of ${last.on_demand_usd:.2f} since {last.dated}"


def _rows(name: str, table: Mapping[str, Any]) -> Iterable[Claim]:
    dated, source = read_origin(name, table, ("prices",))
    prices = table.get("prices")
    if not isinstance(prices, list) or not prices:
        raise PriceFileError(f"{name}.prices: must be a list of [seller, GPU, on demand, spot]")
    for row in prices:
        good = isinstance(row, list) and len(row) == 4 and all(isinstance(t, str) for t in row[:2])
        if not good or not all(_is_price(usd) for usd in row[2:]) or row[3] > row[2]:
            raise PriceFileError(
                f"{name}.prices: {row!r} is no [seller, GPU, on demand, spot] in US dollars"
            )
        yield Claim(row[0], row[1], float(row[2]), float(row[3]), dated, source)


def _sellers(table: Mapping[str, Any]) -> frozenset[str]:
    if not table:
        return frozenset()
    read_origin(_SELLERS, table, ("sellers",))
    sellers = table.get("sellers")
    if not isinstance(sellers, list) or not all(isinstance(one, str) for one in sellers):
        raise PriceFileError(f"{_SELLERS}.sellers: must be a list of names")
    return frozenset(sellers)


def _is_price(usd: Any) -> bool:
    return isinstance(usd, int | float) and not isinstance(usd, bool) and 0 < usd < 1000
