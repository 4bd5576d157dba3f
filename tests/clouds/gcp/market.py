"""The stand-in's market: types, and component prices as the billing catalog lists them, with other
purchase options for the same components."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

ZONES = ("us-central1-a", "us-central1-b", "us-east4-a", "europe-west4-a")
REGIONS = ("us-central1", "us-east4")  # those that tests configure
# type -> (vCPUs, GiB, accelerator, how many of it, local disks, zones)
TYPES: dict[str, tuple[int, int, str, int, int, tuple[str, ...]]] = {
    "a3-highgpu-8g": (208, 1872, "nvidia-h100-80gb", 8, 16, ZONES),
    "a3-highgpu-1g": (26, 234, "nvidia-h100-80gb", 1, 2, ("us-central1-a",)),
    "a3-megagpu-8g": (208, 1872, "nvidia-h100-mega-80gb", 8, 16, ("us-east4-a",)),
    "a2-highgpu-1g": (12, 85, "nvidia-tesla-a100", 1, 0, ("us-central1-a",)),
    "g2-standard-4": (4, 16, "nvidia-l4", 1, 0, ("us-central1-a", "us-east4-a")),
    "a4x-highgpu-4g": (140, 884, "nvidia-l4", 4, 0, ZONES),  # of ARM; its card is a cheap one here
    "e2-standard-4": (4, 16, "", 0, 0, ZONES),
}
# What a part costs by the hour: (on demand, spot), USD; local disks by the month.
PARTS = {
    "A3 Instance Core": (0.029917, 0.0125),
    "A3 Instance Ram": (0.002605, 0.0011),
    "A3Plus Instance Core": (0.029917, 0.0110),
    "A3Plus Instance Ram": (0.002605, 0.0010),
    "A4 Instance Core": (0.03, 0.01),
    "A4 Instance Ram": (0.003, 0.001),
    "A2 Instance Core": (0.031611, 0.009483),
    "A2 Instance Ram": (0.004237, 0.001271),
    "G2 Instance Core": (0.024988, 0.0075),
    "G2 Instance Ram": (0.002927, 0.0009),
    "Nvidia H100 80GB GPU": (9.796551, 2.253),
    "Nvidia H100 80GB Plus GPU": (9.796551, 2.012),
    "Nvidia Tesla A100 GPU": (2.933908, 0.880172),
    "Nvidia Tesla A100 80GB GPU": (3.93, 1.57),
    "Nvidia L4 GPU": (0.560040, 0.1712),
    "SSD backed Local Storage": (0.08, 0.048),
}
_FAR_FROM_ANY_PRICE = 0.000001
_OTHER_DEALS = (
    ("{} running in Americas (DWS Defined Duration)", "OnDemand"),
    ("{} DWS Calendar Mode running in Americas", "OnDemand"),
    ("Reserved {} running in Americas", "OnDemand"),
    ("Commitment v1: {} in Americas for 1 Year", "Commit1Yr"),
    ("{} Sole Tenancy running in Americas", "OnDemand"),
    ("Custom {} running in Americas", "OnDemand"),
)


@dataclass
class Market:
    """`stock` is the remaining capacity of (type, zone); unlimited without an entry. `history` is
    the capacity history of (type, region) in USD per hour; empty for others."""

    parts: dict[str, tuple[float, float]] = field(default_factory=lambda: dict(PARTS))
    stock: dict[tuple[str, str], int] = field(default_factory=dict)
    obtainability: dict[tuple[str, str], float] = field(default_factory=dict)  # of (type, zone)
    history: dict[tuple[str, str], float] = field(default_factory=dict)

    def take(self, kind: str, zone: str) -> bool:
        """Take one machine from the stock; False when there is none."""
        left = self.stock.get((kind, zone))
        if left == 0:
            return False
        if left is not None:
            self.stock[kind, zone] = left - 1
        return True

    def advice(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the advice for one type in one zone; empty where it is unknown."""
        [selection] = body["instanceFlexibilityPolicy"]["instanceSelections"].values()
        [kind], [location] = selection["machineTypes"], body["distributionPolicy"]["zones"]
        share = self.obtainability.get((kind, location["zone"].removeprefix("zones/")))
        scores = {"obtainability": share, "estimatedUptime": "3600s"}
        return {"recommendations": [] if share is None else [{"scores": scores, "shards": []}]}

    def skus(self) -> Iterator[dict[str, Any]]:
        """Return the catalog in the format of ListSkus; half of the spot prices name their VMs at
        the end."""
        regions = [*REGIONS, "europe-west4"]
        for name, (plain, spot) in self.parts.items():
            local = name.startswith("SSD")
            behind = local or name.endswith("GPU")
            taken = f"{name} attached to Spot Preemptible VMs running in Americas"
            yield _sku(f"{name} running in Americas", "OnDemand", plain, regions)
            for pattern, usage in _OTHER_DEALS:
                yield _sku(pattern.format(name), usage, _FAR_FROM_ANY_PRICE, regions)
            message = taken if behind else f"Spot Preemptible {name} running in Americas"
            yield _sku(message, "Preemptible", spot, regions)


def _sku(description: str, usage: str, usd: float, regions: list[str]) -> dict[str, Any]:
    local = "SSD backed" in description
    units, nanos = divmod(round(usd * 1_000_000_000), 1_000_000_000)
    price = {"currencyCode": "USD", "units": str(units), "nanos": nanos}
    rates: list[dict[str, Any]] = [{"startUsageAmount": 0, "unitPrice": price}]
    return {
        "name": "services/6F81-5844-456A/skus/0000",
        "skuId": "0000",
        "description": description,
        "category": {
            "serviceDisplayName": "Compute Engine",
            "resourceFamily": "Storage" if local else "Compute",
            "resourceGroup": "LocalSSD" if local else "GPU" if "GPU" in description else "CPU",
            "usageType": usage,
        },
        "serviceRegions": regions,
        "pricingInfo": [
            {
                "effectiveTime": "2026-11-22T08:00:00Z",
                "pricingExpression": {
                    "usageUnit": "GiBy.mo" if local else "h",
                    "tieredRates": rates,
                },
            }
        ],
        "serviceProviderName": "Google",
    }


def machine_type(kind: str, zone: str, host: str) -> dict[str, Any]:
    """Return it in the format of MachineTypes."""
    cpus, gib, card, count, disks, _ = TYPES[kind]
    row: dict[str, Any] = {
        "kind": "compute#machineType",
        "id": str(1000 + [*TYPES].index(kind)),
        "name": kind,
        "guestCpus": cpus,
        "memoryMb": gib * 1024,
        "zone": zone,
        "selfLink": f"{host}/zones/{zone}/machineTypes/{kind}",
        "architecture": "ARM64" if kind.startswith("a4x") else "X86_64",
    }
    if card:
        row["accelerators"] = [{"guestAcceleratorType": card, "guestAcceleratorCount": count}]
    if disks:
        row["bundledLocalSsds"] = {"defaultInterface": "NVME", "partitionCount": disks}
    return row
