"""Egress list prices: dated data of providers/catalogs/egress.toml, each with its source."""

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
    """`tiers` are (upper limit in GB per month, micro-USD per GB), ascending; the last has no
    limit. `between_zones_microusd_per_gb` is charged in each direction; None where it is
    unknown."""

    dated: str
    source: str
    tiers: Tiers
    between_zones_microusd_per_gb: int | None = None

    @property
    def free(self) -> bool:
        """Whether egress costs nothing, whatever the amount."""
        return not any(microusd for _, microusd in self.tiers)

    @property
    def first_microusd_per_gb(self) -> int:
        """The price of the first GB of a month, which is the highest."""
        return self.tiers[0][1]

    def microusd(self, gb: float) -> int:
        """Return the cost of `gb` in a month without other egress. Raises ValueError for less than
        0."""
        return microusd_of(self.tiers, gb)


@cache
def egress_prices() -> Mapping[str, Egress]:
    """Return the prices by cloud. Raises PriceFileError."""
    return read_prices(files("providers.catalogs").joinpath("egress.toml").read_text())


@cache
def first_tier_prices() -> Mapping[str, int]:
    """Return the price of the first GB of a month in micro-USD, by cloud. Raises PriceFileError."""
    return {cloud: egress.first_microusd_per_gb for cloud, egress in egress_prices().items()}


def read_prices(text: str) -> dict[str, Egress]:
    """Parse the TOML. Raises PriceFileError."""
    return read_tables(text, _read)


def _read(cloud: str, table: Mapping[str, Any]) -> Egress:
    dated, source = read_origin(cloud, table, ("tiers", "between_zones_usd_per_gb"))
    between_zones = table.get("between_zones_usd_per_gb")
    return Egress(
        dated,
        source,
        read_tiers(f"{cloud}.tiers", table.get("tiers")),
        None
        if between_zones is None
        else read_microusd(f"{cloud}.between_zones_usd_per_gb", between_zones),
    )
