"""Machine prices computed from component prices: the Cloud Billing Catalog has no machines, only
vCPU, GiB and GPU prices by family and region."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from providers.gcp.types import MachineType

HOURS_A_MONTH = 730  # Google's figure; local disks are priced by the month
NANO = 1_000_000_000
# Other purchase options for the same component: reserved, committed, flex-start, sole tenancy,
# custom machine types.
_OTHER_PURCHASE_OPTIONS = re.compile(
    r"dws|reserved|commit|custom|sole tenancy|premium|suspended|calendar|flex", re.IGNORECASE
)
_PART = re.compile(
    r"^(?:spot preemptible )?(?:nvidia )?(?:tesla )?(?P<family>.+?) (?P<part>core|ram|gpu)\b",
    re.IGNORECASE,
)
_LOCAL = re.compile(r"^ssd backed local storage", re.IGNORECASE)
# Machine type pattern -> name of its vCPU and memory SKUs.
_HOST_SKUS = (
    ("a2-*", "a2 instance"),
    ("a3-megagpu-*", "a3plus instance"),
    ("a3-ultragpu-*", "a3ultra instance"),
    ("a3-*", "a3 instance"),
    ("a4*", "a4 instance"),
    ("g2-*", "g2 instance"),
)
# guestAcceleratorType -> names of its SKU, without the manufacturer; the mega has had three.
_GPU_SKUS = {
    "nvidia-l4": ("l4",),
    "nvidia-tesla-a100": ("a100",),
    "nvidia-a100-80gb": ("a100 80gb",),
    "nvidia-h100-80gb": ("h100 80gb",),
    "nvidia-h100-mega-80gb": ("h100 80gb mega", "h100 mega 80gb", "h100 80gb plus"),
    "nvidia-h200-141gb": ("h200 141gb",),
    "nvidia-b200": ("b200",),
}
_IS_SPOT = {"OnDemand": False, "Preemptible": True}  # usageType -> whether it is spot

Part = tuple[str, str, bool]  # (region, "family core" and the like, spot)


@dataclass(frozen=True)
class Rates:
    """Nano-USD per hour for a vCPU, a GiB of memory or of local disk, or a GPU."""

    parts: Mapping[Part, float] = field(default_factory=dict)

    def price(self, machine_type: MachineType, region: str, *, spot: bool) -> int:
        """Return micro-USD per hour of the whole machine; 0 when a component has no price."""
        host = next(
            (name for pattern, name in _HOST_SKUS if fnmatchcase(machine_type.name, pattern)), ""
        )
        components: list[tuple[float, tuple[str, ...]]] = [
            (machine_type.cpus, (f"{host} core",)),
            (machine_type.memory_gib, (f"{host} ram",)),
        ]
        if machine_type.accelerator_count:
            names = _GPU_SKUS.get(machine_type.card, ())
            components.append(
                (machine_type.accelerator_count, tuple(f"{name} gpu" for name in names))
            )
        if machine_type.local_gib:
            components.append((machine_type.local_gib, ("local disk",)))
        total = 0.0
        for count, names in components:
            candidates = (self.parts.get((region, name, spot), 0.0) for name in names)
            nano_usd = next((value for value in candidates if value), 0.0)
            if not nano_usd:
                return 0
            total += count * nano_usd
        return round(total / 1000)


def read_skus(skus: Iterable[Mapping[str, Any]]) -> Rates:
    """Parse rows of the catalog. Of two prices for the same component the higher one counts, so
    that no bill is higher than the offer."""
    parts: dict[Part, float] = {}
    for sku in skus:
        category = sku.get("category") or {}
        name = _part_name(str(sku.get("description", "")), str(category.get("resourceFamily", "")))
        spot = _IS_SPOT.get(str(category.get("usageType", "")))
        nano_usd = _nano_usd(sku) if name and spot is not None else 0.0
        if spot is None or not nano_usd:
            continue
        for region in sku.get("serviceRegions") or ():
            key = (str(region), name, spot)
            parts[key] = max(nano_usd, parts.get(key, 0.0))
    return Rates(parts)


def _part_name(description: str, family: str) -> str:
    """Return the component that a SKU prices; "" for an irrelevant one."""
    if _OTHER_PURCHASE_OPTIONS.search(description):
        return ""
    if family == "Storage" and _LOCAL.match(description):
        return "local disk"
    match = _PART.match(description) if family == "Compute" else None
    return f"{match['family']} {match['part']}".lower() if match else ""


def _nano_usd(sku: Mapping[str, Any]) -> float:
    """Return nano-USD per hour; 0 for an unreadable price. The last tier counts: earlier ones are
    the free monthly amount."""
    for info in sku.get("pricingInfo") or ():
        expression = info.get("pricingExpression") or {}
        unit = str(expression.get("usageUnit", ""))
        for rate in reversed(expression.get("tieredRates") or ()):
            price = rate.get("unitPrice") or {}
            if price.get("currencyCode", "USD") != "USD":
                return 0
            nano = int(price.get("units") or 0) * NANO + int(price.get("nanos") or 0)
            return nano / HOURS_A_MONTH if unit.endswith(".mo") else nano
    return 0


def usd_micro(units: int, nanos: int) -> int:
    """Convert Google's Money to micro-USD."""
    return units * 1_000_000 + round(nanos / 1000)
