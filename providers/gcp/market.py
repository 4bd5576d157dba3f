"""Compute Engine's offers: machine types and their zones, prices, reservations."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from providers.base import (
    CONFIGURED,
    PREPAID,
    CapacityType,
    Offer,
    UnpreparedError,
    parse_timestamp_us,
)
from providers.gcp.clients import Clients
from providers.gcp.fabric import CARDS, GPUDIRECT
from providers.gcp.names import link_name, region_of
from providers.gcp.prices import Prices
from providers.gcp.scores import read_scores
from providers.gcp.types import MachineType, read_type
from providers.market_signals import MarketSignal
from providers.timed_cache import TimedCache

CATALOG_S = 24 * 3600.0  # cache time of types and their zones
ARM = "ARM64"  # needs other images and programs
# Sold as spot, for flex-start or in reservations, but not by the hour.
_NEVER_STANDARD = ("a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g")
UPPER_BOUND = "assumed"  # the on-demand price, where the lower price is unknown
_SPOT, _ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND


@dataclass(frozen=True)
class Catalog:
    """Slowly changing facts. `zones` maps machine type -> its zones."""

    types: Mapping[str, MachineType] = field(default_factory=dict)
    zones: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def pools(self) -> list[tuple[str, str]]:
        """Return (region, machine type), each once."""
        pools_ = {
            (region_of(zone), kind): None for kind, zones in self.zones.items() for zone in zones
        }
        return [*pools_]


class Market:
    """Offers of some regions.

    `patterns` are shell patterns of machine types ("a3-*"). `fabric` means that networks for
    GPUDirect exist. `reservations` maps each usable reservation to its extra cost per hour in
    micro-USD.
    """

    def __init__(
        self,
        clients: Clients,
        name: str,
        regions: Sequence[str],
        patterns: Sequence[str],
        monotonic_s: Callable[[], float] = time.monotonic,
        *,
        fabric: bool = False,
        reservations: Mapping[str, int] | None = None,
        flex_start: bool = False,
    ) -> None:
        self._clients = clients
        self._fabric = fabric
        self._reservations = reservations or {}
        self._flex_start = flex_start
        self._name = name
        self._regions = regions
        self._patterns = patterns
        self._prices = Prices(clients, monotonic_s)
        self._cache = TimedCache(monotonic_s)
        fetch = partial(read_scores, clients)
        self.scores = MarketSignal("gcp", "capacity advice's scores", fetch, monotonic_s)

    def offers(self) -> list[Offer]:
        """Return all offers with a known price. Raises ProviderError."""
        catalog = self._catalog()
        self._prices.refresh(catalog.pools())
        reserved = {offer.key: offer for offer in self._reserved(catalog)}
        flex_start = self._flex_start_offers(catalog) if self._flex_start else ()
        # A pool has one offer: reserved capacity takes precedence over flex-start.
        others = (offer for offer in flex_start if offer.key not in reserved)
        return self.scores.annotate([*self._pools(catalog), *reserved.values(), *others])

    def spot_price(self, region: str, instance_type: str) -> int:
        """Return micro-USD per hour; 0 when it is unknown. Raises ProviderError."""
        machine_type = self._catalog().types.get(instance_type)
        return self._prices.spot_now(machine_type, region) if machine_type else 0

    def _pools(self, catalog: Catalog) -> Iterator[Offer]:
        for instance_type, zones in catalog.zones.items():
            machine_type = catalog.types[instance_type]
            for zone in zones:
                region = region_of(zone)
                spot_microusd = self._prices.spot(machine_type, region)
                list_microusd = self._prices.list_price(machine_type, region)
                if spot_microusd:
                    yield self._offer(machine_type, zone, _SPOT, spot_microusd, list_microusd)
                if list_microusd and instance_type not in _NEVER_STANDARD:
                    yield self._offer(machine_type, zone, _ON_DEMAND, list_microusd, list_microusd)

    def _reserved(self, catalog: Catalog) -> Iterator[Offer]:
        """Yield free machines of the named reservations."""
        if not self._reservations:
            return
        filter_ = "status = READY"
        for zone, rows in self._clients.aggregated("Reservations", "reservations", filter_):
            for row in rows if region_of(zone) in self._regions else ():
                free, instance_type, booked = read_reservation(row)
                microusd = self._reservations.get(f"{zone}/{row.name}")
                machine_type = catalog.types.get(instance_type)
                if machine_type is None or microusd is None or free <= 0:
                    continue
                capacity_type = CapacityType.BLOCK if booked else CapacityType.RESERVED
                list_microusd = self._prices.list_price(machine_type, region_of(zone))
                yield replace(
                    self._offer(machine_type, zone, capacity_type, microusd, list_microusd),
                    reservation=row.name,
                    price_source=CONFIGURED if microusd else PREPAID,
                    list_microusd_per_h=list_microusd,
                    ends_at_us=parse_timestamp_us(row.delete_at_time),
                )

    def _flex_start_offers(self, catalog: Catalog) -> Iterator[Offer]:
        """Yield flex-start offers: a machine that starts when there is capacity, for a week at
        most.

        The catalog does not report Google's discount for whole machines, so the price is an upper
        bound.
        """
        for instance_type, zones in catalog.zones.items():
            machine_type = catalog.types[instance_type]
            for zone in zones:
                list_microusd = self._prices.list_price(machine_type, region_of(zone))
                if list_microusd:
                    offer = self._offer(
                        machine_type, zone, CapacityType.BLOCK, list_microusd, list_microusd
                    )
                    yield replace(offer, price_source=UPPER_BOUND)

    def _offer(
        self,
        machine_type: MachineType,
        zone: str,
        capacity_type: CapacityType,
        microusd: int,
        list_microusd: int,
    ) -> Offer:
        has_cards = machine_type.name in CARDS
        fix = f"fabric in [providers.{self._name}]"
        return Offer(
            provider=self._name,
            region=region_of(zone),
            zone=zone,
            instance_type=machine_type.name,
            capacity_type=capacity_type,
            price_microusd_per_h=microusd,
            list_microusd_per_h=max(list_microusd, microusd) if list_microusd else 0,
            accelerator=machine_type.accelerator,
            accelerator_count=machine_type.accelerator_count,
            cpus=float(machine_type.cpus),
            memory_gib=machine_type.memory_gib,
            cloud="gcp",
            zone_id=zone,  # the same for every account
            interconnect=GPUDIRECT if self._fabric and has_cards else "",
            joins_with=fix if has_cards and not self._fabric else "",
        )

    def _catalog(self) -> Catalog:
        """Return the catalog, at most a day old. Raises ProviderError."""
        return self._cache.get("catalog", self._read_catalog, CATALOG_S)

    def _matches(self, instance_type: str) -> bool:
        return any(fnmatchcase(instance_type, pattern) for pattern in self._patterns)

    def _read_catalog(self) -> Catalog:
        """Raises UnpreparedError for an unknown region."""
        rows_by_zone = self._clients.aggregated(
            "MachineTypes", "machine_types", name_filter(self._patterns), include_all_scopes=True
        )
        for region in self._regions:
            if not any(region_of(zone) == region for zone, _ in rows_by_zone):
                raise UnpreparedError(
                    f"Google Cloud has no region {region!r}: see `gcloud compute regions list`"
                )
        types: dict[str, MachineType] = {}
        zones: dict[str, list[str]] = {}
        for zone, rows in rows_by_zone:
            for row in rows if region_of(zone) in self._regions else ():
                if row.architecture != ARM and self._matches(row.name):
                    types[row.name] = read_type(row)
                    zones.setdefault(row.name, []).append(zone)
        return Catalog(types, zones)


def name_filter(patterns: Sequence[str]) -> str:
    """Convert shell patterns to a filter by name, which is an RE2 expression that has to match all
    of it."""
    wildcards = {"*": ".*", "?": "."}
    expressions = ("".join(wildcards.get(c, re.escape(c)) for c in pattern) for pattern in patterns)
    return f'name eq "({"|".join(expressions)})"'


def read_reservation(row: Any) -> tuple[int, str, bool]:
    """Return (free machines, machine type, whether it is calendar-mode capacity). The latter ends
    by itself, together with its machines."""
    specific = row.specific_reservation
    free = specific.count - specific.in_use_count
    instance_type = link_name(specific.instance_properties.machine_type)
    return free, instance_type, bool(row.delete_at_time) or row.deployment_type == "DENSE"
