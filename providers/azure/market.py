"""What Azure has on sale: the sizes that the subscription may have, and their retail prices."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, TypeVar

from providers.azure.clients import Clients
from providers.azure.evictions import read_evictions
from providers.azure.launch import INFINIBAND, zone_name
from providers.azure.reservations import NOT_OURS, Reserved, free
from providers.azure.retail import Prices, questions, read_prices
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
from providers.market_signals import Scores
from providers.warnings import ProviderWarning

SIZES_S = 24 * 3600.0
PRICES_S = 3600.0  # Azure changes them at most daily
MOST_PAGES = 100  # of one answer: whoever tells more, tells the same again
_SPOT, _PLAIN = CapacityType.SPOT, CapacityType.ON_DEMAND
# Machines share InfiniBand in an availability set, and what Azure takes into none has none.
ALONE = (
    "on-demand capacity of no zone: use_spot: false, and infra: PROVIDER/REGION without a zone "
    "(spot, reserved and zonal machines share no InfiniBand, and scale sets are not used)"
)

T = TypeVar("T")


class Market:
    """Offers of some regions. `patterns` are shell patterns of sizes ("Standard_ND*"). A machine
    whose price is not known is not offered. `reservations` are the ids of capacity reservation
    groups, with what an hour in one costs on top of what is paid already, in micro-USD."""

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
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, str], tuple[float, object]] = {}
        ask = partial(read_scores, clients)
        self._refused: dict[str, ProviderWarning] = {}  # by the id of a group
        self.scores = Scores("azure", "spot placement scores", ask, monotonic_s)
        ask = partial(read_evictions, clients)
        self.evictions = Scores("azure", "eviction rates", ask, monotonic_s, "evicted_pct")

    def offers(self) -> list[Offer]:
        """Everything on sale now. Raises ProviderError: half a market is none."""
        pools = [offer for region in self._regions for offer in self._offers_in(region)]
        return self.evictions.fill_in(self.scores.fill_in([*pools, *self._reserved()]))

    def remarks(self) -> list[ProviderWarning]:
        """See Remarking.remarks."""
        with self._lock:
            signals = (*self.scores.remarks(), *self.evictions.remarks())
            return [*signals, *self._refused.values()]

    def _free(self, ident: str) -> list[Reserved]:
        """Of one group. One that is gone, or not ours to read, spoils nothing else."""
        try:
            return [*free(self._clients, ident)]
        except ProviderError as error:
            if error.code not in NOT_OURS:
                raise
            text = f"{ident} is not to be had, and its machines are not offered: {error}"
            key = f"reservation/{ident}"
            with self._lock:
                before = self._refused.get(ident, ProviderWarning(key, text, 0))
                self._refused[ident] = replace(before, times=before.times + 1)
            return []

    def _reserved(self) -> list[Offer]:
        """Of each pool the first group with a machine to spare: a pool is one offer."""
        found: dict[str, Offer] = {}
        for ident, microusd in sorted(self._reservations.items()):
            for one in self._free(ident):
                if one.region not in self._regions:
                    continue
                size = self._sizes(one.region).get(one.size)
                if size is not None:
                    listed = self._listed(one.region, one.size)
                    capacity = CapacityType.RESERVED
                    offer = replace(
                        self._offer(one.region, size, one.zone, capacity, microusd, listed),
                        reservation=one.group,
                        price_source=CONFIGURED if microusd else PREPAID,
                        list_microusd_per_h=listed,
                    )
                    found.setdefault(offer.key, offer)
        return [*found.values()]

    def _sizes(self, region: str) -> dict[str, Size]:
        return self._fresh(("sizes", region), SIZES_S, lambda: self._read_sizes(region))

    def _prices(self, region: str) -> Prices:
        names = sorted(self._sizes(region))
        return self._fresh(("prices", region), PRICES_S, lambda: self._read_prices(region, names))

    def _listed(self, region: str, name: str) -> int:
        dated = price_file("azure").on_demand
        return self._prices(region).listed.get(name) or dated.get(name, {}).get(region, 0)

    def _offers_in(self, region: str) -> Iterator[Offer]:
        sizes, prices = self._sizes(region), self._prices(region)
        for name, size in sizes.items():
            listed = self._listed(region, name)
            spot = prices.spot.get(name, 0) if size.spot else 0
            # The regional pool is one of its own: what it has is in no zone that we could name.
            for zone in ("", *size.zones):
                if spot:
                    yield self._offer(region, size, zone, _SPOT, spot, listed)
                if listed:
                    yield self._offer(region, size, zone, _PLAIN, listed, listed)

    def _offer(
        self, region: str, size: Size, zone: str, capacity: CapacityType, microusd: int, listed: int
    ) -> Offer:
        joined = size.infiniband and capacity is _PLAIN and not zone
        return Offer(
            provider=self._name,
            region=region,
            zone=zone_name(region, zone),
            instance_type=size.name,
            capacity_type=capacity,
            price_microusd_per_h=microusd,
            list_microusd_per_h=max(listed, microusd) if listed else 0,
            accelerator=size.accelerator,
            accelerator_count=size.accelerator_count,
            cpus=size.cpus,
            memory_gib=size.memory_gib,
            cloud="azure",
            interconnect=INFINIBAND if joined else "",
            joins_with=ALONE if size.infiniband and not joined else "",
        )

    def _read_sizes(self, region: str) -> dict[str, Size]:
        only = f"location eq '{region}'"
        rows = self._clients.compute(
            lambda client: [row.as_dict() for row in client.resource_skus.list(filter=only)]
        )
        if not rows:
            raise UnpreparedError(
                f"Azure has no region {region!r} that this subscription may use: "
                "see `az account list-locations -o table`"
            )
        found = (read_size(row, region) for row in rows if self._wanted(str(row.get("name"))))
        return {size.name: size for size in found if size is not None}

    def _wanted(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self._patterns)

    def _read_prices(self, region: str, sizes: Sequence[str]) -> Prices:
        rows: list[Mapping[str, Any]] = []
        for question in questions(region, sizes):
            page: str | dict[str, str] = question
            for _ in range(MOST_PAGES):
                answer = self._clients.prices(page)
                rows += answer.get("Items") or ()
                page = answer.get("NextPageLink") or ""
                if not page:
                    break
        return read_prices(rows, datetime.now(UTC))

    def _fresh(self, key: tuple[str, str], fresh_s: float, read: Callable[[], T]) -> T:
        now_s = self._monotonic_s()
        with self._lock:
            until_s, value = self._kept.get(key, (0.0, None))
        if value is None or now_s >= until_s:
            value = read()
            with self._lock:
                self._kept[key] = (now_s + fresh_s, value)
        return value  # type: ignore[return-value]
