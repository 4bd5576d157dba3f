"""The stand-in's market: sizes as in the list of SKUs, retail prices as in their API (from the
facts page where it has them), and capacity."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.clouds.azure.held import Reply
from tests.clouds.azure.refusals import error

REGIONS = ("eastus", "westeurope")
H100, A100, T4, CPU = (
    "Standard_ND96isr_H100_v5",
    "Standard_NC24ads_A100_v4",
    "Standard_NC4as_T4_v3",
    "Standard_F2s_v2",
)


@dataclass(frozen=True)
class Kind:
    """A size: its properties, and USD per hour by region."""

    family: str
    capabilities: dict[str, str]
    zones: dict[str, tuple[str, ...]]
    listed: dict[str, float]
    spot: dict[str, float]


def _has(cpus: int, memory: int, gpus: int, rdma: bool = False) -> dict[str, str]:
    return {
        "vCPUs": str(cpus),
        "MemoryGB": str(memory),
        "LowPriorityCapable": "True",
        "PremiumIO": "True",
        "HyperVGenerations": "V2",
        "RdmaEnabled": str(rdma),
        "AcceleratedNetworkingEnabled": "True",
    } | ({"GPUs": str(gpus)} if gpus else {})


KINDS = {
    H100: Kind(
        "standardNDSH100v5Family",
        _has(96, 1900, 8, rdma=True),
        {"eastus": ("1", "2"), "westeurope": ()},
        {"eastus": 98.32, "westeurope": 127.82},
        {"eastus": 29.50, "westeurope": 38.35},
    ),
    A100: Kind(
        "StandardNCADSA100v4Family",
        _has(24, 220, 1),
        {"eastus": ("1", "2", "3"), "westeurope": ("1",)},
        {"eastus": 3.673, "westeurope": 4.775},
        {"eastus": 1.4692, "westeurope": 1.91},
    ),
    T4: Kind(
        "Standard NCASv3_T4 Family",
        _has(4, 28, 1),
        {"eastus": ("1",), "westeurope": ()},
        {"eastus": 0.526},
        {"eastus": 0.0526},
    ),
    CPU: Kind(
        "standardFSv2Family",
        _has(2, 4, 0),
        {"eastus": ("1", "2", "3"), "westeurope": ("1", "2", "3")},
        {"eastus": 0.0846, "westeurope": 0.097},
        {"eastus": 0.0169, "westeurope": 0.0194},
    ),
}


@dataclass
class Catalog:
    """`stock` is the remaining capacity of (size, zone), zone "" being the regional pool; unlimited
    without an entry. `restricted` are (size, region) that the subscription may not use; `closed`
    are the zones of (size, region) that it may not use."""

    kinds: dict[str, Kind] = field(default_factory=lambda: dict(KINDS))
    stock: dict[tuple[str, str], int] = field(default_factory=dict)
    restricted: set[tuple[str, str]] = field(default_factory=set)
    closed: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    untold: set[str] = field(default_factory=set)  # sizes that the prices do not know
    evictions: dict[tuple[str, str], str] = field(default_factory=dict)  # (size, region) -> band
    scores: dict[tuple[str, str, str], str] = field(default_factory=dict)  # (size, region, zone)

    def take(self, size: str, zone: str) -> bool:
        """Take one machine from the stock; False when there is none."""
        left = self.stock.get((size, zone))
        if left == 0:
            return False
        if left is not None:
            self.stock[size, zone] = left - 1
        return True

    def spot_usd(self, size: str, region: str) -> float:
        """Return the current price; 0 without one."""
        return self.kinds[size].spot.get(region, 0.0)

    def generate(self, method: str, query: Mapping[str, str], body: Any) -> Reply:
        """Answer spot placement scores, by zone or for each region's own pool, in the format of the
        REST reference of 2025-06-05."""
        known = {"desiredLocations", "desiredSizes", "desiredCount", "availabilityZones"}
        regions, sizes = (
            body["desiredLocations"],
            [desired_size["sku"] for desired_size in body["desiredSizes"]],
        )
        fits = 1 <= len(regions) <= 8 and 1 <= len(sizes) <= 5 and set(body) == known
        if method != "POST" or query["api-version"] != "2025-06-05" or not fits:
            return Reply(400, error("InvalidParameter", f"{method} {body}"))
        rows = [
            {
                "sku": size,
                "region": region,
                **({"availabilityZone": zone} if zone else {}),
                "score": self.scores.get((size, region, zone), "DataNotFoundOrStale"),
                "isQuotaAvailable": True,
            }
            for size in sizes
            for region in regions
            for zone in (self.kinds[size].zones[region] if body["availabilityZones"] else ("",))
        ]
        return Reply(200, {**body, "placementScores": rows})

    def graph(self, method: str, query: Mapping[str, str], body: Any) -> Reply:
        """Answer Resource Graph's query for eviction rates. Names of sizes are in lower case
        there."""
        received = re.fullmatch(
            r"SpotResources \| where type =~ 'microsoft\.compute/skuspotevictionrate/location' "
            r"\| where sku\.name in~ \((.*)\) and location in~ \((.*)\) "
            r"\| project skuName = tostring\(sku\.name\), location, "
            r"evictionRate = tostring\(properties\.evictionRate\)",
            body.get("query", ""),
        )
        known = {"subscriptions", "query", "options"}
        if (
            method != "POST"
            or query["api-version"] != "2022-10-01"
            or set(body) != known
            or not received
        ):
            return Reply(400, error("BadRequest", f"{method} {body}"))
        sizes, regions = (set(re.findall("'([^']+)'", part)) for part in received.groups())
        rows = [
            {"skuName": size.lower(), "location": region, "evictionRate": rate}
            for (size, region), rate in self.evictions.items()
            if size in sizes and region in regions
        ]
        reported = {"totalRecords": len(rows), "count": len(rows), "facets": [], "data": rows}
        return Reply(200, reported | {"resultTruncated": "false"})

    def skus(self, region: str) -> list[dict[str, Any]]:
        """Return rows of the list of SKUs."""
        rows = [self._sku(name, kind, region) for name, kind in self.kinds.items()]
        disk = {"resourceType": "disks", "name": "Premium_LRS", "locations": [region]}
        known = any(region in kind.zones for kind in self.kinds.values())
        return [row for row in rows if row] + ([disk] if known else [])

    def _sku(self, name: str, kind: Kind, region: str) -> dict[str, Any]:
        if region not in kind.zones:
            return {}
        restrictions: list[dict[str, Any]] = []
        if (name, region) in self.restricted:
            restrictions.append(
                {
                    "type": "Location",
                    "values": [region],
                    "restrictionInfo": {"locations": [region]},
                    "reasonCode": "NotAvailableForSubscription",
                }
            )
        if (name, region) in self.closed:
            zones = [*self.closed[name, region]]
            restrictions.append(
                {
                    "type": "Zone",
                    "values": [region],
                    "restrictionInfo": {"locations": [region], "zones": zones},
                    "reasonCode": "NotAvailableForSubscription",
                }
            )
        return {
            "resourceType": "virtualMachines",
            "name": name,
            "tier": "Standard",
            "size": name.removeprefix("Standard_"),
            "family": kind.family,
            "locations": [region],
            "locationInfo": [
                {"location": region, "zones": [*kind.zones[region]], "zoneDetails": []}
            ],
            "capabilities": [{"name": k, "value": v} for k, v in kind.capabilities.items()],
            "restrictions": restrictions,
        }

    def prices(self, region: str, sizes: list[str]) -> list[dict[str, Any]]:
        """Return rows of the retail prices, irrelevant ones included."""
        rows = []
        for size in sizes:
            kind = self.kinds.get(size)
            if kind is None or size in self.untold:
                continue
            listed, spot = kind.listed.get(region), kind.spot.get(region)
            plain = size.removeprefix("Standard_").replace("_", " ")
            if listed:
                rows += [
                    _price(size, region, plain, listed),
                    _price(size, region, plain, listed * 1.5, product="Virtual Machines Windows"),
                    _price(size, region, f"{plain} Low Priority", listed * 0.2),
                    _price(size, region, plain, 0.01, product="Cloud Services"),
                    _price(size, region, plain, listed * 2, since="2999-01-01T00:00:00Z"),
                    _price(size, region, plain, listed * 3, since="2019-01-01T00:00:00Z"),
                ]
            if spot:
                rows.append(_price(size, region, f"{plain} Spot", spot))
                windows = "Virtual Machines Windows"
                rows.append(_price(size, region, f"{plain} Spot", spot * 2, product=windows))
        return rows


def _price(
    size: str,
    region: str,
    meter: str,
    usd: float,
    *,
    product: str = "Virtual Machines Series",
    since: str = "2026-01-01T00:00:00Z",
) -> dict[str, Any]:
    return {
        "currencyCode": "USD",
        "tierMinimumUnits": 0.0,
        "retailPrice": usd,
        "unitPrice": usd,
        "armRegionName": region,
        "location": region,
        "effectiveStartDate": since,
        "meterId": f"{size}-{meter}",
        "meterName": meter,
        "productId": "DZH318Z0",
        "skuId": "DZH318Z0/0001",
        "productName": product,
        "skuName": meter,
        "serviceName": "Virtual Machines",
        "serviceId": "DZH313Z7MMC8",
        "serviceFamily": "Compute",
        "unitOfMeasure": "1 Hour",
        "type": "Consumption",
        "isPrimaryMeterRegion": True,
        "armSkuName": size,
    }
