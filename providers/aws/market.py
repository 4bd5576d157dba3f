"""EC2's offers: machine types and their zones, spot and on-demand prices, reservations."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from providers.aws.clients import Clients
from providers.aws.scores import read_scores
from providers.aws.types import MachineType, read_type
from providers.base import (
    CONFIGURED,
    PREPAID,
    CapacityType,
    Offer,
    ProviderError,
    ThrottledError,
    UnknownOutcome,
    timestamp_us,
)
from providers.catalogs.prices import price_file
from providers.market_signals import MarketSignal
from providers.timed_cache import TimedCache
from providers.warnings import ProviderWarning

log = logging.getLogger(__name__)

WARN_AFTER_FAILURES = 3  # consecutive failures of a region
CATALOG_S = 24 * 3600.0  # cache time of types, zones and on-demand prices
PRICE_LIST_REGION = "us-east-1"  # the Price List API runs in few regions, for all of them
PRODUCT = "Linux/UNIX"
TYPES_PER_CALL = 100
BLOCK_TAIL_US = 1800 * 1_000_000
_SPOT, _ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND


@dataclass(frozen=True)
class Catalog:
    """Slowly changing facts of one region.

    `zones` maps machine type -> zone -> zone id, `list_prices` machine type -> on-demand price in
    micro-USD per hour where it is known.
    """

    types: Mapping[str, MachineType] = field(default_factory=dict)
    zones: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    list_prices: Mapping[str, int] = field(default_factory=dict)


class Market:
    """Offers of some regions.

    `patterns` are shell patterns of machine types ("p5.*"); they keep out thousands of pools that
    no job asks for. `multi_card` allows machines with several network cards, which cannot have a
    public address; without it, types that need them for EFA are offered without EFA. `reservations`
    maps each usable reservation to its extra cost per hour in micro-USD.
    """

    def __init__(
        self,
        clients: Clients,
        name: str,
        regions: Sequence[str],
        patterns: Sequence[str],
        monotonic_s: Callable[[], float] = time.monotonic,
        *,
        multi_card: bool = True,
        reservations: Mapping[str, int] | None = None,
    ) -> None:
        self._clients = clients
        self._multi_card = multi_card
        self._reservations = reservations or {}
        self._name = name
        self._regions = regions
        self._patterns = patterns
        self._lock = threading.Lock()
        self._catalogs = TimedCache(monotonic_s)
        fetch = partial(read_scores, clients)
        self._failures_in_row: dict[str, int] = {}  # region -> consecutive failures
        self._unavailable: dict[str, tuple[str, int]] = {}  # region -> (first message, count)
        self.scores = MarketSignal("aws", "spot placement scores", fetch, monotonic_s)

    def offers(self) -> list[Offer]:
        """Return all offers of the regions that answer; `warnings` reports the others.

        Raises ProviderError when no region answers. A region is returned completely or not at all.
        """
        answers, failed = self._clients.for_each_region(self._regions, self._offers_in)
        if not answers:
            for error in failed.values():
                raise error
        self._record_failures(failed)
        return self.scores.annotate([offer for _, offers in answers for offer in offers])

    def machine_type(self, region: str, name: str) -> MachineType | None:
        """Return a machine type; None for one that the region does not have or that no pattern
        matches. Raises ProviderError."""
        return self._catalog(region).types.get(name)

    def warnings(self) -> list[ProviderWarning]:
        """See WarningSource.warnings."""
        with self._lock:
            unavailable = [
                ProviderWarning(f"region/{self._name}/{region}", message, count)
                for region, (message, count) in self._unavailable.items()
            ]
        return [*self.scores.warnings(), *unavailable]

    def _record_failures(self, failed: Mapping[str, ProviderError]) -> None:
        """Report an error that somebody has to fix at once, a possibly transient one when it
        persists."""
        with self._lock:
            self._failures_in_row = {
                region: self._failures_in_row.get(region, 0) + 1 for region in failed
            }
            for region, error in failed.items():
                log.warning("%s: no offers of %s: %s", self._name, region, error)
                transient = isinstance(error, (UnknownOutcome, ThrottledError))
                if transient and self._failures_in_row[region] < WARN_AFTER_FAILURES:
                    continue
                new_message = (
                    f"{region} returns no offers, so no machine is launched there; "
                    f"other regions are not affected: {error}"
                )
                message, count = self._unavailable.get(region, (new_message, 0))
                self._unavailable[region] = (message, count + 1)

    def _offers_in(self, region: str) -> Iterator[Offer]:
        catalog = self._catalog(region)
        if not catalog.types:
            return
        offer = partial(self._offer, region, catalog)
        for (instance_type, zone), (microusd, zone_id) in self._spot_prices(
            region, catalog
        ).items():
            yield offer(instance_type, zone, zone_id, _SPOT, microusd)
        for instance_type, zones in catalog.zones.items():
            list_microusd = catalog.list_prices.get(instance_type, 0)
            for zone, zone_id in zones.items() if list_microusd else ():
                yield offer(instance_type, zone, zone_id, _ON_DEMAND, list_microusd)
        yield from self._reserved(region, catalog)

    def _reserved(self, region: str, catalog: Catalog) -> Iterator[Offer]:
        """Yield, for each pool, the first usable reservation with a free machine: a pool has one
        offer."""
        offers: dict[str, Offer] = {}
        rows = self._active_reservations(region) if self._reservations else ()
        for row in sorted(rows, key=lambda row: str(row["CapacityReservationId"])):
            instance_type, reservation_id = row["InstanceType"], row["CapacityReservationId"]
            wanted = reservation_id in self._reservations and instance_type in catalog.types
            if wanted and row.get("AvailableInstanceCount"):
                block = row.get("ReservationType") == "capacity-block"
                capacity_type = CapacityType.BLOCK if block else CapacityType.RESERVED
                zone_and_id = (row["AvailabilityZone"], row.get("AvailabilityZoneId", ""))
                microusd = self._reservations[reservation_id]
                offer = replace(
                    self._offer(
                        region, catalog, instance_type, *zone_and_id, capacity_type, microusd
                    ),
                    reservation=reservation_id,
                    price_source=CONFIGURED if microusd else PREPAID,
                    list_microusd_per_h=catalog.list_prices.get(instance_type, 0),
                    ends_at_us=ends_us(row, block=block),
                )
                offers.setdefault(offer.key, offer)
        yield from offers.values()

    def _offer(
        self,
        region: str,
        catalog: Catalog,
        instance_type: str,
        zone: str,
        zone_id: str,
        capacity_type: CapacityType,
        microusd: int,
    ) -> Offer:
        machine_type, list_microusd = (
            catalog.types[instance_type],
            catalog.list_prices.get(instance_type, 0),
        )
        # A machine with several cards can never have a public address.
        cards = machine_type.efa_cards
        connected = cards == 1 or (cards > 1 and self._multi_card)
        fix = f'network = "private" or "jump" in [providers.{self._name}]'
        return Offer(
            provider=self._name,
            region=region,
            zone=zone,
            instance_type=instance_type,
            capacity_type=capacity_type,
            price_microusd_per_h=microusd,
            list_microusd_per_h=max(list_microusd, microusd) if list_microusd else 0,
            accelerator=machine_type.accelerator,
            accelerator_count=machine_type.accelerator_count,
            cpus=machine_type.cpus,
            memory_gib=machine_type.memory_gib,
            cloud="aws",
            zone_id=zone_id,
            interconnect="efa" if connected else "",
            joins_with=fix if cards and not connected else "",
        )

    def _spot_prices(self, region: str, catalog: Catalog) -> dict[tuple[str, str], tuple[int, str]]:
        """Return (type, zone) -> (micro-USD per hour, zone id): the current price, which is what a
        price history that starts now contains. The order of rows is not guaranteed."""
        latest: dict[tuple[str, str], tuple[datetime, int, str]] = {}
        types = sorted(catalog.types)
        for start in range(0, len(types), TYPES_PER_CALL):
            rows = self._clients.pages(
                region,
                "describe_spot_price_history",
                "SpotPriceHistory",
                InstanceTypes=types[start : start + TYPES_PER_CALL],
                ProductDescriptions=[PRODUCT],
                StartTime=datetime.now(UTC),
            )
            for row in rows:
                key = (row["InstanceType"], row["AvailabilityZone"])
                zone_id = row.get("AvailabilityZoneId") or ""
                price = (row["Timestamp"], microusd_of(row["SpotPrice"]), zone_id)
                if key[0] in catalog.types and (key not in latest or latest[key][0] < price[0]):
                    latest[key] = price
        return {key: (microusd, zone_id) for key, (_, microusd, zone_id) in latest.items()}

    def _active_reservations(self, region: str) -> list[dict[str, Any]]:
        return self._clients.pages(
            region,
            "describe_capacity_reservations",
            "CapacityReservations",
            Filters=[{"Name": "state", "Values": ["active"]}],
        )

    def _catalog(self, region: str) -> Catalog:
        """Return the catalog of a region, at most a day old; without list prices, it is read again
        next time. Raises ProviderError."""
        catalog, _ = self._catalogs.get(
            region,
            lambda: self._read_catalog(region),
            lambda read: CATALOG_S if read[1] else 0.0,
        )
        return catalog

    def _read_catalog(self, region: str) -> tuple[Catalog, bool]:
        filters = [{"Name": "instance-type", "Values": [*self._patterns]}]
        rows = self._clients.pages(
            region, "describe_instance_types", "InstanceTypes", Filters=filters
        )
        types = {row["InstanceType"]: read_type(row) for row in rows}
        zone_rows = self._clients.call(region, "describe_availability_zones")["AvailabilityZones"]
        zone_ids = {zone["ZoneName"]: zone.get("ZoneId", "") for zone in zone_rows}
        offerings = self._clients.pages(
            region,
            "describe_instance_type_offerings",
            "InstanceTypeOfferings",
            LocationType="availability-zone",
            Filters=filters,
        )
        zones: dict[str, dict[str, str]] = {}
        for row in offerings:
            if row["InstanceType"] in types and row["Location"] in zone_ids:
                zones.setdefault(row["InstanceType"], {})[row["Location"]] = zone_ids[
                    row["Location"]
                ]
        dated = {
            instance_type: regions.get(region, 0)
            for instance_type, regions in price_file("aws").on_demand.items()
        }
        list_prices = {
            instance_type: microusd
            for instance_type, microusd in dated.items()
            if microusd and instance_type in types
        }
        try:
            list_prices |= self._list_prices(region, sorted(types))
        except ProviderError:
            return Catalog(types, zones, list_prices), False
        return Catalog(types, zones, list_prices), True

    def _list_prices(self, region: str, types: Sequence[str]) -> dict[str, int]:
        """Return on-demand prices by type, from the Price List API."""
        fixed = {
            "regionCode": region,
            "operatingSystem": "Linux",
            "tenancy": "Shared",
            "preInstalledSw": "NA",
            "capacitystatus": "Used",
        }
        prices: dict[str, int] = {}
        for start in range(0, len(types), TYPES_PER_CALL):
            batch = ",".join(types[start : start + TYPES_PER_CALL])
            filters = [
                *({"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in fixed.items()),
                {"Type": "ANY_OF", "Field": "instanceType", "Value": batch},
            ]
            rows = self._clients.pages(
                PRICE_LIST_REGION,
                "get_products",
                "PriceList",
                service="pricing",
                ServiceCode="AmazonEC2",
                Filters=filters,
            )
            for row in rows:
                prices.update(read_product(json.loads(str(row))))
        return prices


def ends_us(row: Mapping[str, Any], *, block: bool) -> int:
    """Return when the machines of a reservation are terminated; 0 for no end.

    EC2 starts to terminate machines of a capacity block 30 minutes before its EndDate (EC2 user
    guide, "Monitor Capacity Blocks": 40 minutes before the end it warns that they end in 10).
    Machines of an on-demand reservation would continue after its end, at the on-demand price.
    """
    moment = row.get("EndDate")
    return timestamp_us(moment) - (BLOCK_TAIL_US if block else 0) if moment else 0


def read_product(product: Mapping[str, Any]) -> dict[str, int]:
    """Return {instance type: micro-USD per hour} of a product in the Price List; {} without an
    hourly price in US dollars."""
    instance_type = product["product"]["attributes"].get("instanceType", "")
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term.get("priceDimensions", {}).values():
            usd = dimension.get("pricePerUnit", {}).get("USD")
            if instance_type and usd and dimension.get("unit") == "Hrs" and microusd_of(usd):
                return {instance_type: microusd_of(usd)}
    return {}


def microusd_of(usd: str) -> int:
    """Convert a price as AWS writes it ("11.562300") to micro-USD."""
    return round(float(usd) * 1_000_000)
