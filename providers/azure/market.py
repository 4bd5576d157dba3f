"""What Azure has on sale: the sizes that the subscription may have, and their retail prices."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from providers.azure.clients import Clients
from providers.azure.launch import INFINIBAND, zone_name
from providers.azure.retail import Prices, questions, read_prices
from providers.azure.sizes import Size, read_size
from providers.base import CapacityType, Offer, UnpreparedError
from providers.prices import price_file

SIZES_S = 24 * 3600.0
PRICES_S = 3600.0  # Azure changes them at most daily
MOST_PAGES = 100  # of one answer: whoever tells more, tells the same again
_SPOT, _PLAIN = CapacityType.SPOT, CapacityType.ON_DEMAND

T = TypeVar("T")


class Market:
    """Offers of some regions. `patterns` are shell patterns of sizes ("Standard_ND*"). A machine
    whose price is not known is not offered."""

    def __init__(
        self,
        clients: Clients,
        name: str,
        regions: Sequence[str],
        patterns: Sequence[str],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clients = clients
        self._name = name
        self._regions = regions
        self._patterns = patterns
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, str], tuple[float, object]] = {}

    def offers(self) -> list[Offer]:
        """Everything on sale now. Raises ProviderError: half a market is none."""
        return [offer for region in self._regions for offer in self._offers_in(region)]

    def _offers_in(self, region: str) -> Iterator[Offer]:
        sizes = self._fresh(("sizes", region), SIZES_S, lambda: self._read_sizes(region))
        prices = self._fresh(
            ("prices", region), PRICES_S, lambda: self._read_prices(region, sorted(sizes))
        )
        dated = price_file("azure").on_demand
        for name, size in sizes.items():
            listed = prices.listed.get(name) or dated.get(name, {}).get(region, 0)
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
            interconnect=INFINIBAND if size.infiniband and capacity is _PLAIN and not zone else "",
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
