"""What it costs to keep objects in a cloud's store: dated list prices of
providers/catalogs/storage.toml, each with its source, of one class in one region."""

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

GB = 1 << 30  # in which all three count what lies in their stores
_SCHEMES = {"s3": "aws", "gs": "gcp", "az": "azure"}  # of a store's URL
_PRICES = ("usd_per_1000_writes", "usd_per_1000_reads", "retrieval_usd_per_gb")


@dataclass(frozen=True)
class Storage:
    """`storage_class` and `region` say what the figures are of; `tiers` are (up to so many GB of a
    month, micro-USD a GB and month). Requests are in micro-USD for a thousand of them."""

    dated: str
    source: str
    storage_class: str
    region: str
    tiers: Tiers
    microusd_per_1000_writes: int
    microusd_per_1000_reads: int
    retrieval_microusd_per_gb: int

    def microusd_per_month(self, size_bytes: int) -> int:
        """Of so many bytes that lie there for a month, where nothing else does. Raises ValueError
        for less than none."""
        return microusd_of(self.tiers, size_bytes / GB)


@cache
def storage_prices() -> Mapping[str, Storage]:
    """By make of cloud ("aws", "azure", "gcp"). Raises PriceFileError."""
    return read_prices(files("providers.catalogs").joinpath("storage.toml").read_text())


@cache
def first_storage() -> Mapping[str, tuple[int, int]]:
    """By make of cloud, in micro-USD: of the first GB (2^30 bytes) that lies there for a month, and
    of a thousand writes. Raises PriceFileError."""
    return {
        cloud: (one.tiers[0][1], one.microusd_per_1000_writes)
        for cloud, one in storage_prices().items()
    }


def storage_of(url: str) -> Storage | None:
    """Of the store at an address like s3://bucket/prefix; None where nobody is known to be paid for
    it. (S3 may be somebody else's than AWS's: `endpoint` in its options says so.)"""
    return storage_prices().get(_SCHEMES.get(url.partition(":")[0], ""))


def read_prices(text: str) -> dict[str, Storage]:
    """Raises PriceFileError."""
    return read_tables(text, _read)


def _read(cloud: str, table: Mapping[str, Any]) -> Storage:
    dated, source = read_origin(cloud, table, ("class", "region", "tiers", *_PRICES))
    for key in ("class", "region", *_PRICES):
        if key not in table:
            raise PriceFileError(f"{cloud}.{key}: is missing")
    for key in ("class", "region"):
        if not isinstance(table[key], str) or not table[key]:
            raise PriceFileError(f"{cloud}.{key}: {table[key]!r} is no name")
    tiers = read_tiers(f"{cloud}.tiers", table.get("tiers"))
    each = [read_microusd(f"{cloud}.{key}", table[key]) for key in _PRICES]
    return Storage(dated, source, table["class"], table["region"], tiers, *each)
