"""Dated prices that no API of the vendor tells, or that stand in while one does not answer: data
files beside each adapter, each with its source and its day."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class PriceFile:
    """`on_demand` is instance type -> region -> micro-USD per hour; so is `spot`, a snapshot of
    another day (`spot_dated`, "" for none): what places cost beside each other, and never what one
    costs now."""

    dated: str
    source: str
    on_demand: Mapping[str, Mapping[str, int]]
    spot: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    spot_dated: str = ""
    spot_source: str = ""


@cache
def price_file(cloud: str) -> PriceFile:
    """The file of "aws", "gcp" or "azure"."""
    text = files(f"providers.{cloud}").joinpath("prices.toml").read_text()
    document = tomllib.loads(text)
    plain, spot = document["on_demand"], document.get("spot")
    found = PriceFile(str(plain["dated"]), plain["source"], _prices(plain))
    if spot is None:
        return found
    return replace(
        found, spot=_prices(spot), spot_dated=str(spot["dated"]), spot_source=spot["source"]
    )


def _prices(section: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    return {
        kind: {region: round(usd * 1_000_000) for region, usd in places.items()}
        for kind, places in section["usd_per_hour"].items()
    }
