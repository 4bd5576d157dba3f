"""What it costs to take bytes out of a cloud: dated list prices of providers/catalogs/egress.toml,
each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from providers.catalogs.price_file import (
    PriceFileError,
    Tiers,
    microusd_of,
    read_microusd,
    read_origin,
    read_tables,
    read_tiers,
)

__all__ = ["Egress", "PriceFileError", "egress_prices", "read_prices"]


@dataclass(frozen=True)
class Egress:
    """`tiers` are (up to so many GB of a month, micro-USD a GB), ascending, the last one without an
    end; `between_zones_microusd_per_gb` is each way, None where no figure is known."""

    dated: str
    source: str
    tiers: Tiers
    between_zones_microusd_per_gb: int | None = None

    @property
    def free(self) -> bool:
        """Whether nothing is charged, whatever the amount."""
        return not any(each for _, each in self.tiers)

    @property
    def first_microusd_per_gb(self) -> int:
        """Of the first GB of a month, which is the dearest."""
        return self.tiers[0][1]

    def microusd(self, gb: float) -> int:
        """What `gb` cost in a month in which nothing else leaves. Raises ValueError for less than
        none."""
        return microusd_of(self.tiers, gb)


@cache
def egress_prices() -> Mapping[str, Egress]:
    """By make of cloud ("aws", "azure", "gcp"). Raises PriceFileError."""
    return read_prices(files("providers.catalogs").joinpath("egress.toml").read_text())


@cache
def first_prices() -> Mapping[str, int]:
    """Micro-USD of the first GB of a month that leaves, by make of cloud. Raises PriceFileError."""
    return {cloud: out.first_microusd_per_gb for cloud, out in egress_prices().items()}


def read_prices(text: str) -> dict[str, Egress]:
    """Raises PriceFileError."""
    return read_tables(text, _read)


def _read(cloud: str, table: Mapping[str, Any]) -> Egress:
    dated, source = read_origin(cloud, table, ("tiers", "between_zones_usd_per_gb"))
    zones = table.get("between_zones_usd_per_gb")
    return Egress(
        dated,
        source,
        read_tiers(f"{cloud}.tiers", table.get("tiers")),
        None if zones is None else read_microusd(f"{cloud}.between_zones_usd_per_gb", zones),
    )
