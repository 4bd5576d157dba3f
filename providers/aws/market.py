"""What EC2 has on sale: machine types, the zones that offer them, spot and on-demand prices,
reservations."""

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
from providers.aws.listing import us_of
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
)
from providers.catalogs.prices import price_file
from providers.market_signals import Scores
from providers.warnings import ProviderWarning

log = logging.getLogger(__name__)

HICCUPS = 3  # times in a row that a region may give no answer before a person is told
CATALOG_S = 24 * 3600.0  # types, zones and on-demand prices are asked for so often
PRICES_REGION = "us-east-1"  # the Price List API is in few regions, and answers for all
PRODUCT = "Linux/UNIX"
TYPES_A_QUESTION = 100
BLOCK_TAIL_US = 1800 * 1_000_000
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
    of pools that no job asks for cost calls and memory. `many_cards` says that machines may have
    several network cards, which EC2 gives no public address: without, those that need them for EFA
    are offered without it. `reservations` are those whose machines are offered, with what an hour
    costs on top of what is paid already."""

    def __init__(
        self,
        clients: Clients,
        name: str,
        regions: Sequence[str],
        patterns: Sequence[str],
        monotonic_s: Callable[[], float] = time.monotonic,
        *,
        many_cards: bool = True,
        reservations: Mapping[str, int] | None = None,
    ) -> None:
        self._clients = clients
        self._many_cards = many_cards
        self._reservations = reservations or {}
        self._name = name
        self._regions = regions
        self._patterns = patterns
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._catalogs: dict[str, tuple[float, Catalog]] = {}
        ask = partial(read_scores, clients)
        self._failing: dict[str, int] = {}  # region -> how often, up to now
        self._left_out: dict[str, tuple[str, int]] = {}  # region -> first words, and how often
        self.scores = Scores("aws", "spot placement scores", ask, monotonic_s)

    def offers(self) -> list[Offer]:
        """Everything on sale now, in the regions that answer; of the others `remarks` tells. Raises
        ProviderError when none does, and half a region is none."""
        answers, failed = self._clients.wherever(self._regions, self._offers_in)
        if not answers:
            for error in failed.values():
                raise error
        self._note(failed)
        return self.scores.fill_in([offer for _, offers in answers for offer in offers])

    def machine_type(self, region: str, name: str) -> MachineType | None:
        """What a type has; None for one that the region has not, or that no pattern names. Raises
        ProviderError."""
        return self._catalog(region).types.get(name)

    def remarks(self) -> list[ProviderWarning]:
        """See Remarking.remarks."""
        with self._lock:
            left_out = [
                ProviderWarning(f"region/{self._name}/{region}", text, times)
                for region, (text, times) in self._left_out.items()
            ]
        return [*self.scores.remarks(), *left_out]

    def _note(self, failed: Mapping[str, ProviderError]) -> None:
        """What a person should mend is told at once; what may be a hiccup when it lasts."""
        with self._lock:
            self._failing = {region: self._failing.get(region, 0) + 1 for region in failed}
            for region, error in failed.items():
                log.warning("%s: no offers of %s: %s", self._name, region, error)
                passing = isinstance(error, (UnknownOutcome, ThrottledError))
                if passing and self._failing[region] < HICCUPS:
                    continue
                text = (
                    f"{region} does not say what it sells, and no machine is asked for there, "
                    f"while other regions are as good as ever: {error}"
                )
                told, times = self._left_out.get(region, (text, 0))
                self._left_out[region] = (told, times + 1)

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
        """Of each pool the first reservation with a machine to spare: a pool is one offer. Those of
        others in the account are none of ours to use up."""
        found: dict[str, Offer] = {}
        rows = self._active(region) if self._reservations else ()
        for row in sorted(rows, key=lambda row: str(row["CapacityReservationId"])):
            kind, ident = row["InstanceType"], row["CapacityReservationId"]
            known = ident in self._reservations and kind in catalog.types
            if known and row.get("AvailableInstanceCount"):
                block = row.get("ReservationType") == "capacity-block"
                capacity = CapacityType.BLOCK if block else CapacityType.RESERVED
                place = (row["AvailabilityZone"], row.get("AvailabilityZoneId", ""))
                microusd = self._reservations[ident]
                offer = replace(
                    self._offer(region, catalog, kind, *place, capacity, microusd),
                    reservation=ident,
                    price_source=CONFIGURED if microusd else PREPAID,
                    list_microusd_per_h=catalog.listed.get(kind, 0),
                    ends_at_us=ends_us(row, block=block),
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
    ) -> Offer:
        machine, listed = catalog.types[kind], catalog.listed.get(kind, 0)
        # EC2 gives a machine of several cards no public address, when it is launched or later.
        cards = machine.efa_cards
        joined = cards == 1 or (cards > 1 and self._many_cards)
        needs = f'network = "private" or "jump" in [providers.{self._name}]'
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
            interconnect="efa" if joined else "",
            joins_with=needs if cards and not joined else "",
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

    def _active(self, region: str) -> list[dict[str, Any]]:
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


def ends_us(row: Mapping[str, Any], *, block: bool) -> int:
    """When a machine out of it is to be gone; 0 for one without an end. EC2 begins to end those of
    a capacity block half an hour before its EndDate (EC2 user guide, "Monitor Capacity Blocks": it
    warns 40 minutes before the end that they end in 10). Those of an on-demand reservation that
    ends would go on, and cost what they cost on demand."""
    moment = row.get("EndDate")
    return us_of(moment) - (BLOCK_TAIL_US if block else 0) if moment else 0


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
