"""Object storage list prices: dated data of providers/catalogs/storage.toml, each with its source,
for one storage class in one region."""

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
from providers.clouds import CLOUD_OF_SCHEME

GB = 1 << 30  # the unit in which all three clouds bill stored data
_PRICES = ("usd_per_1000_writes", "usd_per_1000_reads", "retrieval_usd_per_gb")


@dataclass(frozen=True)
class StoragePrice:
    """Prices of `storage_class` in `region`.

    `tiers` are (upper limit in GB, micro-USD per GB and month). Request prices are micro-USD per
    thousand.
    """

    dated: str
    source: str
    storage_class: str
    region: str
    tiers: Tiers
    microusd_per_1000_writes: int
    microusd_per_1000_reads: int
    retrieval_microusd_per_gb: int

    def microusd_per_month(self, size_bytes: int) -> int:
        """Return the cost of storing `size_bytes` for a month, with nothing else in the account.
        Raises ValueError for less than 0."""
        return microusd_of(self.tiers, size_bytes / GB)


@cache
def storage_prices() -> Mapping[str, StoragePrice]:
    """Return the prices by cloud. Raises PriceFileError."""
    return read_prices(files("providers.catalogs").joinpath("storage.toml").read_text())


@cache
def first_tier_storage() -> Mapping[str, tuple[int, int]]:
    """Return, by cloud, micro-USD for the first GB (2^30 bytes) and month and for a thousand
    writes. Raises PriceFileError."""
    return {
        cloud: (price.tiers[0][1], price.microusd_per_1000_writes)
        for cloud, price in storage_prices().items()
    }


def storage_price_of(url: str) -> StoragePrice | None:
    """Return the price of the store at a URL like s3://bucket/prefix; None for an unknown kind of
    store. An S3 store with an `endpoint` option may be another vendor's; this cannot be seen from
    its URL."""
    cloud = CLOUD_OF_SCHEME.get(url.partition(":")[0])
    return storage_prices().get(cloud.name) if cloud else None


def read_prices(text: str) -> dict[str, StoragePrice]:
    """Parse the TOML. Raises PriceFileError."""
    return read_tables(text, _read)


def _read(cloud: str, table: Mapping[str, Any]) -> StoragePrice:
    dated, source = read_origin(cloud, table, ("class", "region", "tiers", *_PRICES))
    for key in ("class", "region", *_PRICES):
        if key not in table:
            raise PriceFileError(f"{cloud}.{key}: is missing")
    for key in ("class", "region"):
        if not isinstance(table[key], str) or not table[key]:
            raise PriceFileError(f"{cloud}.{key}: {table[key]!r} is not a name")
    tiers = read_tiers(f"{cloud}.tiers", table.get("tiers"))
    prices = [read_microusd(f"{cloud}.{key}", table[key]) for key in _PRICES]
    return StoragePrice(dated, source, table["class"], table["region"], tiers, *prices)
