"""Dated prices that no API of the vendor tells, or that stand in while one does not answer: data
files beside each adapter, each with its source and its day."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class PriceFile:
    """`on_demand` is instance type -> region -> micro-USD per hour."""

    dated: str
    source: str
    on_demand: Mapping[str, Mapping[str, int]]


@cache
def price_file(cloud: str) -> PriceFile:
    """The file of "aws", "gcp" or "azure"."""
    text = files(f"providers.{cloud}").joinpath("prices.toml").read_text()
    document = tomllib.loads(text)
    on_demand = {
        kind: {region: round(usd * 1_000_000) for region, usd in places.items()}
        for kind, places in document["on_demand"]["usd_per_hour"].items()
    }
    section = document["on_demand"]
    return PriceFile(str(section["dated"]), section["source"], on_demand)
