"""Prices of machines, put together from those of their parts: the Cloud Billing Catalog knows no
machine, only a vCPU, a GiB and a GPU of each family in each region."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from providers.gcp.types import MachineType

HOURS_A_MONTH = 730  # as Google counts them; local disks are sold by the month
NANO = 1_000_000_000
# Other ways to pay for the same part: booked, committed, waiting for its turn, with a host of one's
# own, in pieces of one's own choice.
_OTHER_DEALS = re.compile(
    r"dws|reserved|commit|custom|sole tenancy|premium|suspended|calendar|flex", re.IGNORECASE
)
_PART = re.compile(
    r"^(?:spot preemptible )?(?:nvidia )?(?:tesla )?(?P<family>.+?) (?P<part>core|ram|gpu)\b",
    re.IGNORECASE,
)
_LOCAL = re.compile(r"^ssd backed local storage", re.IGNORECASE)
# Machine types -> what the SKUs of their vCPUs and memory are called.
_HOSTS = (
    ("a2-*", "a2 instance"),
    ("a3-megagpu-*", "a3plus instance"),
    ("a3-ultragpu-*", "a3ultra instance"),
    ("a3-*", "a3 instance"),
    ("a4*", "a4 instance"),
    ("g2-*", "g2 instance"),
)
# guestAcceleratorType -> what its SKU is called, without the maker; the mega has had three names.
_CARDS = {
    "nvidia-l4": ("l4",),
    "nvidia-tesla-a100": ("a100",),
    "nvidia-a100-80gb": ("a100 80gb",),
    "nvidia-h100-80gb": ("h100 80gb",),
    "nvidia-h100-mega-80gb": ("h100 80gb mega", "h100 mega 80gb", "h100 80gb plus"),
    "nvidia-h200-141gb": ("h200 141gb",),
    "nvidia-b200": ("b200",),
}
_SOLD = {"OnDemand": False, "Preemptible": True}  # usageType -> whether it is spot

Part = tuple[str, str, bool]  # (region, "family core" and the like, spot)


@dataclass(frozen=True)
class Rates:
    """Nano-USD per hour of one part: a vCPU, a GiB of memory or of local disk, a GPU."""

    parts: Mapping[Part, float] = field(default_factory=dict)

    def price(self, machine: MachineType, region: str, *, spot: bool) -> int:
        """Micro-USD per hour of the whole machine; 0 when a part of it has no price."""
        host = next((name for like, name in _HOSTS if fnmatchcase(machine.name, like)), "")
        needed: list[tuple[float, tuple[str, ...]]] = [
            (machine.cpus, (f"{host} core",)),
            (machine.memory_gib, (f"{host} ram",)),
        ]
        if machine.accelerator_count:
            names = _CARDS.get(machine.card, ())
            needed.append((machine.accelerator_count, tuple(f"{name} gpu" for name in names)))
        if machine.local_gib:
            needed.append((machine.local_gib, ("local disk",)))
        total = 0.0
        for count, names in needed:
            known = (self.parts.get((region, name, spot), 0.0) for name in names)
            each = next((nano for nano in known if nano), 0.0)
            if not each:
                return 0
            total += count * each
        return round(total / 1000)


def read_skus(skus: Iterable[Mapping[str, Any]]) -> Rates:
    """Of the rows of the catalog; of two for the same part the dearer one counts, so that nothing
    is promised that is billed higher."""
    found: dict[Part, float] = {}
    for sku in skus:
        category = sku.get("category") or {}
        name = _name(str(sku.get("description", "")), str(category.get("resourceFamily", "")))
        spot = _SOLD.get(str(category.get("usageType", "")))
        nano = _nano(sku) if name and spot is not None else 0.0
        if spot is None or not nano:
            continue
        for region in sku.get("serviceRegions") or ():
            key = (str(region), name, spot)
            found[key] = max(nano, found.get(key, 0.0))
    return Rates(found)


def _name(description: str, family: str) -> str:
    """The part that a SKU is for; "" for what is of no use here."""
    if _OTHER_DEALS.search(description):
        return ""
    if family == "Storage" and _LOCAL.match(description):
        return "local disk"
    match = _PART.match(description) if family == "Compute" else None
    return f"{match['family']} {match['part']}".lower() if match else ""


def _nano(sku: Mapping[str, Any]) -> float:
    """Nano-USD per hour; 0 for a price that cannot be read. The last of the rates counts: the ones
    before it are what is free each month."""
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
    """Google's Money in micro-USD."""
    return units * 1_000_000 + round(nanos / 1000)
