"""Azure's offers: the sizes that the subscription may use, and their retail prices."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from providers.azure.clients import Clients
from providers.azure.evictions import read_evictions
from providers.azure.launch import INFINIBAND, zone_name
from providers.azure.reservations import INACCESSIBLE, FreeReservation, free_reservations
from providers.azure.retail import Prices, price_queries, read_prices
from providers.azure.scores import read_scores
from providers.azure.sizes import Size, read_size
from providers.base import (
    CONFIGURED,
    PREPAID,
    CapacityType,
    Offer,
    ProviderError,
    UnpreparedError,
)
from providers.catalogs.prices import price_file
from providers.market_signals import MarketSignal
from providers.timed_cache import TimedCache
from providers.warnings import ProviderWarning

SIZES_S = 24 * 3600.0
PRICES_S = 3600.0  # Azure changes them at most daily
MAX_PAGES = 100  # per query; a longer answer repeats itself
_SPOT, _ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND
# InfiniBand needs an availability set; machines that cannot be in one have no InfiniBand.
NO_INFINIBAND = (
    "on-demand capacity of no zone: use_spot: false, and infra: PROVIDER/REGION without a zone "
    "(spot, reserved and zonal machines share no InfiniBand, and scale sets are not used)"
)


class Market:
    """Offers of some regions.

    `patterns` are shell patterns of sizes ("Standard_ND*"). A size without a known price is not
    offered. `reservations` maps ids of capacity reservation groups to the extra cost per hour in
    micro-USD.
    """

    def __init__(
        self,
        clients: Clients,
        name: str,
        regions: Sequence[str],
        patterns: Sequence[str],
        monotonic_s: Callable[[], float] = time.monotonic,
        reservations: Mapping[str, int] | None = None,
    ) -> None:
        self._clients = clients
        self._reservations = reservations or {}
        self._name = name
        self._regions = regions
        self._patterns = patterns
        self._lock = threading.Lock()
        self._cache = TimedCache(monotonic_s)
        fetch = partial(read_scores, clients)
        self._inaccessible: dict[str, ProviderWarning] = {}  # by group id
        self.scores = MarketSignal("azure", "spot placement scores", fetch, monotonic_s)
        fetch = partial(read_evictions, clients)
        self.evictions = MarketSignal("azure", "eviction rates", fetch, monotonic_s, "evicted_pct")

    def offers(self) -> list[Offer]:
        """Return all offers. Raises ProviderError rather than returning part of them."""
        pools = [offer for region in self._regions for offer in self._offers_in(region)]
        return self.evictions.annotate(self.scores.annotate([*pools, *self._reserved()]))

    def warnings(self) -> list[ProviderWarning]:
        """See WarningSource.warnings."""
        with self._lock:
            signals = (*self.scores.warnings(), *self.evictions.warnings())
            return [*signals, *self._inaccessible.values()]

    def _read_group(self, group_id: str) -> list[FreeReservation]:
        """Return the free reservations of a group. An inaccessible group is reported and does not
        affect others."""
        try:
            return [*free_reservations(self._clients, group_id)]
        except ProviderError as error:
            if error.code not in INACCESSIBLE:
                raise
            message = f"{group_id} is not accessible, so its machines are not offered: {error}"
            key = f"reservation/{group_id}"
            with self._lock:
                previous = self._inaccessible.get(group_id, ProviderWarning(key, message, 0))
                self._inaccessible[group_id] = replace(previous, times=previous.times + 1)
            return []

    def _reserved(self) -> list[Offer]:
        """Return, for each pool, the first group with a free machine: a pool has one offer."""
        offers: dict[str, Offer] = {}
        for group_id, microusd in sorted(self._reservations.items()):
            for reservation in self._read_group(group_id):
                if reservation.region not in self._regions:
                    continue
                size = self._sizes(reservation.region).get(reservation.size)
                if size is not None:
                    list_microusd = self._list_price(reservation.region, reservation.size)
                    capacity_type = CapacityType.RESERVED
                    offer = replace(
                        self._offer(
                            reservation.region,
                            size,
                            reservation.zone,
                            capacity_type,
                            microusd,
                            list_microusd,
                        ),
                        reservation=reservation.group,
                        price_source=CONFIGURED if microusd else PREPAID,
                        list_microusd_per_h=list_microusd,
                    )
                    offers.setdefault(offer.key, offer)
        return [*offers.values()]

    def _sizes(self, region: str) -> dict[str, Size]:
        return self._cache.get(("sizes", region), lambda: self._read_sizes(region), SIZES_S)

    def _prices(self, region: str) -> Prices:
        names = sorted(self._sizes(region))
        return self._cache.get(
            ("prices", region), lambda: self._read_prices(region, names), PRICES_S
        )

    def _list_price(self, region: str, name: str) -> int:
        dated = price_file("azure").on_demand
        return self._prices(region).list_price.get(name) or dated.get(name, {}).get(region, 0)

    def _offers_in(self, region: str) -> Iterator[Offer]:
        sizes, prices = self._sizes(region), self._prices(region)
        for name, size in sizes.items():
            list_microusd = self._list_price(region, name)
            spot_microusd = prices.spot.get(name, 0) if size.spot else 0
            # The regional pool is separate: its capacity cannot be requested by zone.
            for zone in ("", *size.zones):
                if spot_microusd:
                    yield self._offer(region, size, zone, _SPOT, spot_microusd, list_microusd)
                if list_microusd:
                    yield self._offer(region, size, zone, _ON_DEMAND, list_microusd, list_microusd)

    def _offer(
        self,
        region: str,
        size: Size,
        zone: str,
        capacity_type: CapacityType,
        microusd: int,
        list_microusd: int,
    ) -> Offer:
        connected = size.infiniband and capacity_type is _ON_DEMAND and not zone
        return Offer(
            provider=self._name,
            region=region,
            zone=zone_name(region, zone),
            instance_type=size.name,
            capacity_type=capacity_type,
            price_microusd_per_h=microusd,
            list_microusd_per_h=max(list_microusd, microusd) if list_microusd else 0,
            accelerator=size.accelerator,
            accelerator_count=size.accelerator_count,
            cpus=size.cpus,
            memory_gib=size.memory_gib,
            cloud="azure",
            interconnect=INFINIBAND if connected else "",
            joins_with=NO_INFINIBAND if size.infiniband and not connected else "",
        )

    def _read_sizes(self, region: str) -> dict[str, Size]:
        filter_ = f"location eq '{region}'"
        rows = self._clients.compute(
            lambda client: [row.as_dict() for row in client.resource_skus.list(filter=filter_)]
        )
        if not rows:
            raise UnpreparedError(
                f"Azure has no region {region!r} that this subscription may use: "
                "see `az account list-locations -o table`"
            )
        sizes = (read_size(row, region) for row in rows if self._matches(str(row.get("name"))))
        return {size.name: size for size in sizes if size is not None}

    def _matches(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self._patterns)

    def _read_prices(self, region: str, sizes: Sequence[str]) -> Prices:
        rows: list[Mapping[str, Any]] = []
        for query in price_queries(region, sizes):
            page: str | dict[str, str] = query
            for _ in range(MAX_PAGES):
                answer = self._clients.prices(page)
                rows += answer.get("Items") or ()
                page = answer.get("NextPageLink") or ""
                if not page:
                    break
        return read_prices(rows, datetime.now(UTC))
