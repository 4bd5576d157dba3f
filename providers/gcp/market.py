"""What Compute Engine has on sale: machine types and their zones, prices, reservations."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from providers.base import CONFIGURED, PREPAID, CapacityType, Offer, UnpreparedError
from providers.gcp.clients import Clients
from providers.gcp.fabric import CARDS, GPUDIRECT
from providers.gcp.names import last, region_of
from providers.gcp.operations import us_of
from providers.gcp.prices import Prices
from providers.gcp.scores import read_scores
from providers.gcp.types import MachineType, read_type
from providers.market_signals import Scores

CATALOG_S = 24 * 3600.0  # types and their zones are asked for so often
ARM = "ARM64"  # its images are others, and so is every program that jobs bring
# Sold as spot, for flex-start or in reservations, but not by the hour.
_NEVER_STANDARD = ("a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g")
AT_MOST = "assumed"  # the on-demand price, for want of a lower one that is told
_SPOT, _PLAIN = CapacityType.SPOT, CapacityType.ON_DEMAND


@dataclass(frozen=True)
class Catalog:
    """What changes seldom. `zones` is machine type -> the zones that have it."""

    types: Mapping[str, MachineType] = field(default_factory=dict)
    zones: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def places(self) -> list[tuple[str, str]]:
        """(region, machine type), each once."""
        found = {
            (region_of(zone), kind): None for kind, zones in self.zones.items() for zone in zones
        }
        return [*found]


class Market:
    """Offers of some regions; `patterns` are shell patterns of machine types ("a3-*"). `fabric`
    says that there are networks for GPUDirect; `reservations` are those whose machines are offered,
    with what an hour costs on top of what is paid already."""

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
        self._monotonic_s = monotonic_s
        self._prices = Prices(clients, monotonic_s)
        self._lock = threading.Lock()
        self._kept: tuple[float, Catalog] = (0.0, Catalog())
        ask = partial(read_scores, clients)
        self.scores = Scores("gcp", "capacity advice's scores", ask, monotonic_s)

    def offers(self) -> list[Offer]:
        """Everything on sale now whose price is known. Raises ProviderError."""
        catalog = self._catalog()
        self._prices.refresh(catalog.places())
        booked = {offer.key: offer for offer in self._booked(catalog)}
        waiting = self._waiting(catalog) if self._flex_start else ()
        # A pool is one offer: booked time comes before waiting for a turn.
        others = (offer for offer in waiting if offer.key not in booked)
        return self.scores.fill_in([*self._pools(catalog), *booked.values(), *others])

    def spot_price(self, region: str, kind: str) -> int:
        """Micro-USD per hour; 0 when it is not known. Raises ProviderError."""
        machine = self._catalog().types.get(kind)
        return self._prices.spot_now(machine, region) if machine else 0

    def _pools(self, catalog: Catalog) -> Iterator[Offer]:
        for kind, zones in catalog.zones.items():
            machine = catalog.types[kind]
            for zone in zones:
                region = region_of(zone)
                spot = self._prices.spot(machine, region)
                listed = self._prices.listed(machine, region)
                if spot:
                    yield self._offer(machine, zone, _SPOT, spot, listed)
                if listed and kind not in _NEVER_STANDARD:
                    yield self._offer(machine, zone, _PLAIN, listed, listed)

    def _booked(self, catalog: Catalog) -> Iterator[Offer]:
        """Machines of the named reservations that are free."""
        if not self._reservations:
            return
        ready = "status = READY"
        for zone, rows in self._clients.aggregated("Reservations", "reservations", ready):
            for row in rows if region_of(zone) in self._regions else ():
                free, kind, booked = read_reservation(row)
                microusd = self._reservations.get(f"{zone}/{row.name}")
                machine = catalog.types.get(kind)
                if machine is None or microusd is None or free <= 0:
                    continue
                capacity = CapacityType.BLOCK if booked else CapacityType.RESERVED
                listed = self._prices.listed(machine, region_of(zone))
                yield replace(
                    self._offer(machine, zone, capacity, microusd, listed),
                    reservation=row.name,
                    price_source=CONFIGURED if microusd else PREPAID,
                    list_microusd_per_h=listed,
                    ends_at_us=us_of(row.delete_at_time),
                )

    def _waiting(self, catalog: Catalog) -> Iterator[Offer]:
        """Flex-start: a machine that comes when there is one, and stays for a week at most. What
        Google takes off for that, the catalog does not say of whole machines."""
        for kind, zones in catalog.zones.items():
            machine = catalog.types[kind]
            for zone in zones:
                listed = self._prices.listed(machine, region_of(zone))
                if listed:
                    offer = self._offer(machine, zone, CapacityType.BLOCK, listed, listed)
                    yield replace(offer, price_source=AT_MOST)

    def _offer(
        self,
        machine: MachineType,
        zone: str,
        capacity: CapacityType,
        microusd: int,
        listed: int,
    ) -> Offer:
        has_cards = machine.name in CARDS
        needs = f"fabric in [providers.{self._name}]"
        return Offer(
            provider=self._name,
            region=region_of(zone),
            zone=zone,
            instance_type=machine.name,
            capacity_type=capacity,
            price_microusd_per_h=microusd,
            list_microusd_per_h=max(listed, microusd) if listed else 0,
            accelerator=machine.accelerator,
            accelerator_count=machine.accelerator_count,
            cpus=float(machine.cpus),
            memory_gib=machine.memory_gib,
            cloud="gcp",
            zone_id=zone,  # the same for every account
            interconnect=GPUDIRECT if self._fabric and has_cards else "",
            joins_with=needs if has_cards and not self._fabric else "",
        )

    def _catalog(self) -> Catalog:
        """No older than a day. Raises ProviderError."""
        now_s = self._monotonic_s()
        with self._lock:
            until_s, catalog = self._kept
        if now_s >= until_s:
            catalog = self._read_catalog()
            with self._lock:
                self._kept = (now_s + CATALOG_S, catalog)
        return catalog

    def _wanted(self, kind: str) -> bool:
        return any(fnmatchcase(kind, like) for like in self._patterns)

    def _read_catalog(self) -> Catalog:
        """Raises UnpreparedError for a region that there is not."""
        answers = self._clients.aggregated(
            "MachineTypes", "machine_types", name_filter(self._patterns), include_all_scopes=True
        )
        for region in self._regions:
            if not any(region_of(zone) == region for zone, _ in answers):
                raise UnpreparedError(
                    f"Google Cloud has no region {region!r}: see `gcloud compute regions list`"
                )
        types: dict[str, MachineType] = {}
        zones: dict[str, list[str]] = {}
        for zone, rows in answers:
            for row in rows if region_of(zone) in self._regions else ():
                if row.architecture != ARM and self._wanted(row.name):
                    types[row.name] = read_type(row)
                    zones.setdefault(row.name, []).append(zone)
        return Catalog(types, zones)


def name_filter(patterns: Sequence[str]) -> str:
    """Shell patterns as a filter by name, which takes a regular expression of RE2 that has to match
    all of it."""
    wild = {"*": ".*", "?": "."}
    each = ("".join(wild.get(c, re.escape(c)) for c in pattern) for pattern in patterns)
    return f'name eq "({"|".join(each)})"'


def read_reservation(row: Any) -> tuple[int, str, bool]:
    """(free machines, their type, whether it is time that was booked): a booked one ends by itself,
    and so do the machines in it."""
    specific = row.specific_reservation
    free = specific.count - specific.in_use_count
    kind = last(specific.instance_properties.machine_type)
    return free, kind, bool(row.delete_at_time) or row.deployment_type == "DENSE"
