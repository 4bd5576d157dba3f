"""What EC2 has on sale: machine types, the zones that offer them, spot and on-demand prices,
reservations."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from providers.aws.clients import Clients
from providers.aws.types import MachineType, read_type
from providers.base import CapacityType, Offer, ProviderError
from providers.prices import price_file

CATALOG_S = 24 * 3600.0  # types, zones and on-demand prices are asked for so often
PRICES_REGION = "us-east-1"  # the Price List API is in few regions, and answers for all
PRODUCT = "Linux/UNIX"
TYPES_A_QUESTION = 100
_SPOT, _PLAIN = CapacityType.SPOT, CapacityType.ON_DEMAND


@dataclass(frozen=True)
class Catalog:
    """What changes seldom, of one region. `zones` is machine type -> zone -> zone id, `listed`
    machine type -> on-demand price in micro-USD per hour where it is known."""

    types: Mapping[str, MachineType] = field(default_factory=dict)
    zones: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    listed: Mapping[str, int] = field(default_factory=dict)


class Market:
    """Offers of some regions. `patterns` are shell patterns of machine types ("p5.*"): thousands
    of pools that no job asks for cost calls and memory."""

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
        self._catalogs: dict[str, tuple[float, Catalog]] = {}

    def offers(self) -> list[Offer]:
        """Everything on sale now. Raises ProviderError: half a market is none."""
        answers = self._clients.everywhere(self._regions, self._offers_in)
        return [offer for _, offers in answers for offer in offers]

    def machine_type(self, region: str, name: str) -> MachineType | None:
        """What a type has; None for one that the region has not, or that no pattern names. Raises
        ProviderError."""
        return self._catalog(region).types.get(name)

    def _offers_in(self, region: str) -> Iterator[Offer]:
        catalog = self._catalog(region)
        if not catalog.types:
            return
        offer = partial(self._offer, region, catalog)
        for (kind, zone), (microusd, zone_id) in self._spot_prices(region, catalog).items():
            yield offer(kind, zone, zone_id, _SPOT, microusd)
        for kind, zones in catalog.zones.items():
            listed = catalog.listed.get(kind, 0)
            for zone, zone_id in zones.items() if listed else ():
                yield offer(kind, zone, zone_id, _PLAIN, listed)
        yield from self._reserved(region, catalog)

    def _reserved(self, region: str, catalog: Catalog) -> Iterator[Offer]:
        """Of each pool the first reservation with a machine to spare: a pool is one offer."""
        found: dict[str, Offer] = {}
        rows = self._reservations(region)
        for row in sorted(rows, key=lambda row: str(row["CapacityReservationId"])):
            kind, listed = row["InstanceType"], catalog.listed.get(row["InstanceType"], 0)
            if kind in catalog.types and listed and row.get("AvailableInstanceCount"):
                block = row.get("ReservationType") == "capacity-block"
                capacity = CapacityType.BLOCK if block else CapacityType.RESERVED
                place = (row["AvailabilityZone"], row.get("AvailabilityZoneId", ""))
                # It is paid for whether used or not; what that comes to is on AWS's bill alone.
                offer = self._offer(
                    region, catalog, kind, *place, capacity, listed, row["CapacityReservationId"]
                )
                found.setdefault(offer.key, offer)
        yield from found.values()

    def _offer(
        self,
        region: str,
        catalog: Catalog,
        kind: str,
        zone: str,
        zone_id: str,
        capacity: CapacityType,
        microusd: int,
        reservation: str = "",
    ) -> Offer:
        machine, listed = catalog.types[kind], catalog.listed.get(kind, 0)
        return Offer(
            provider=self._name,
            region=region,
            zone=zone,
            instance_type=kind,
            capacity_type=capacity,
            price_microusd_per_h=microusd,
            list_microusd_per_h=max(listed, microusd) if listed else 0,
            accelerator=machine.accelerator,
            accelerator_count=machine.accelerator_count,
            cpus=machine.cpus,
            memory_gib=machine.memory_gib,
            cloud="aws",
            zone_id=zone_id,
            reservation=reservation,
            interconnect="efa" if machine.efa_cards else "",
        )

    def _spot_prices(self, region: str, catalog: Catalog) -> dict[tuple[str, str], tuple[int, str]]:
        """(type, zone) -> (micro-USD per hour, zone id): the price in effect, which is what a
        history that begins now tells. The order of rows is not guaranteed."""
        found: dict[tuple[str, str], tuple[datetime, int, str]] = {}
        kinds = sorted(catalog.types)
        for start in range(0, len(kinds), TYPES_A_QUESTION):
            rows = self._clients.pages(
                region,
                "describe_spot_price_history",
                "SpotPriceHistory",
                InstanceTypes=kinds[start : start + TYPES_A_QUESTION],
                ProductDescriptions=[PRODUCT],
                StartTime=datetime.now(UTC),
            )
            for row in rows:
                key = (row["InstanceType"], row["AvailabilityZone"])
                zone_id = row.get("AvailabilityZoneId") or ""
                price = (row["Timestamp"], microusd_of(row["SpotPrice"]), zone_id)
                if key[0] in catalog.types and (key not in found or found[key][0] < price[0]):
                    found[key] = price
        return {key: (microusd, zone_id) for key, (_, microusd, zone_id) in found.items()}

    def _reservations(self, region: str) -> list[dict[str, Any]]:
        return self._clients.pages(
            region,
            "describe_capacity_reservations",
            "CapacityReservations",
            Filters=[{"Name": "state", "Values": ["active"]}],
        )

    def _catalog(self, region: str) -> Catalog:
        """Of a region, no older than a day. While prices are not told it is asked for again with
        the next offers. Raises ProviderError."""
        now_s = self._monotonic_s()
        with self._lock:
            until_s, catalog = self._catalogs.get(region, (0.0, None))
        if catalog is None or now_s >= until_s:
            catalog, whole = self._read_catalog(region)
            with self._lock:
                self._catalogs[region] = (now_s + (CATALOG_S if whole else 0.0), catalog)
        return catalog

    def _read_catalog(self, region: str) -> tuple[Catalog, bool]:
        like = [{"Name": "instance-type", "Values": [*self._patterns]}]
        rows = self._clients.pages(region, "describe_instance_types", "InstanceTypes", Filters=like)
        types = {row["InstanceType"]: read_type(row) for row in rows}
        named = self._clients.call(region, "describe_availability_zones")["AvailabilityZones"]
        ids = {zone["ZoneName"]: zone.get("ZoneId", "") for zone in named}
        places = self._clients.pages(
            region,
            "describe_instance_type_offerings",
            "InstanceTypeOfferings",
            LocationType="availability-zone",
            Filters=like,
        )
        zones: dict[str, dict[str, str]] = {}
        for row in places:
            if row["InstanceType"] in types and row["Location"] in ids:
                zones.setdefault(row["InstanceType"], {})[row["Location"]] = ids[row["Location"]]
        told = {kind: places.get(region, 0) for kind, places in price_file("aws").on_demand.items()}
        known = {kind: microusd for kind, microusd in told.items() if microusd and kind in types}
        try:
            known |= self._list_prices(region, sorted(types))
        except ProviderError:
            return Catalog(types, zones, known), False
        return Catalog(types, zones, known), True

    def _list_prices(self, region: str, kinds: Sequence[str]) -> dict[str, int]:
        """On-demand prices by type, from the Price List API."""
        fixed = {
            "regionCode": region,
            "operatingSystem": "Linux",
            "tenancy": "Shared",
            "preInstalledSw": "NA",
            "capacitystatus": "Used",
        }
        found: dict[str, int] = {}
        for start in range(0, len(kinds), TYPES_A_QUESTION):
            some = ",".join(kinds[start : start + TYPES_A_QUESTION])
            filters = [
                *({"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in fixed.items()),
                {"Type": "ANY_OF", "Field": "instanceType", "Value": some},
            ]
            rows = self._clients.pages(
                PRICES_REGION,
                "get_products",
                "PriceList",
                service="pricing",
                ServiceCode="AmazonEC2",
                Filters=filters,
            )
            for row in rows:
                found.update(read_product(json.loads(str(row))))
        return found


def read_product(product: Mapping[str, Any]) -> dict[str, int]:
    """{instance type: micro-USD per hour} of one product of the Price List; empty where it has no
    hourly price in US dollars."""
    kind = product["product"]["attributes"].get("instanceType", "")
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term.get("priceDimensions", {}).values():
            usd = dimension.get("pricePerUnit", {}).get("USD")
            if kind and usd and dimension.get("unit") == "Hrs" and microusd_of(usd):
                return {kind: microusd_of(usd)}
    return {}


def microusd_of(usd: str) -> int:
    """A price as AWS writes it ("11.562300"), in micro-USD."""
    return round(float(usd) * 1_000_000)
