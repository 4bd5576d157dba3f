"""Dated machine prices, for what no vendor API reports or while one does not answer.

Each adapter has a `prices.toml` with sources and dates.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class PriceFile:
    """`on_demand` is instance type -> region -> micro-USD per hour.

    `spot` has the same shape: a snapshot of `spot_dated` ("" for none), for comparing regions only,
    never as a current price.
    """

    dated: str
    source: str
    on_demand: Mapping[str, Mapping[str, int]]
    spot: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    spot_dated: str = ""
    spot_source: str = ""


@cache
def price_file(cloud: str) -> PriceFile:
    """Return the prices in the cloud's folder."""
    text = files(f"providers.{cloud}").joinpath("prices.toml").read_text()
    document = tomllib.loads(text)
    on_demand, spot = document["on_demand"], document.get("spot")
    prices = PriceFile(str(on_demand["dated"]), on_demand["source"], _prices(on_demand))
    if spot is None:
        return prices
    return replace(
        prices, spot=_prices(spot), spot_dated=str(spot["dated"]), spot_source=spot["source"]
    )


def _prices(section: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    return {
        instance_type: {region: round(usd * 1_000_000) for region, usd in regions.items()}
        for instance_type, regions in section["usd_per_hour"].items()
    }
