"""Parse Azure's machine sizes (resource SKUs) into the terms of job specs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# GPU by size name. A100 means 40 GB in the old ND series, and 80 GB elsewhere.
_MODELS = (
    (re.compile(r"_ND96asr(_A100)?_v4$"), "A100"),
    (re.compile(r"_A100_"), "A100-80GB"),
    (re.compile(r"_(GB\d+|H\d+|B\d+|A10|T4|L4|L40S|MI\d+X)_"), ""),
    (re.compile(r"_NC\d+r?s_v3$|_ND\d+rs_v2$"), "V100"),
    (re.compile(r"_NC\d+r?s_v2$"), "P100"),
)
# Sizes with a sixth, a third or half of an A10 report one GPU.
_PART_OF_A_GPU = re.compile(r"_NV(6|12|18)ads_A10_v5$")
# Confidential sizes (NCC) need special images.
_OTHER_IMAGES = re.compile(r"^Standard_NCC")


@dataclass(frozen=True)
class Size:
    """A size in one region. `zones` are those where the subscription may use it; `regional` means
    that it may be used without naming a zone."""

    name: str
    cpus: float
    memory_gib: float
    zones: tuple[str, ...]
    regional: bool = True
    accelerator: str = ""
    accelerator_count: int = 0
    spot: bool = True
    infiniband: bool = False


def read_size(row: Mapping[str, Any], region: str) -> Size | None:
    """Parse a row of the SKUs; None for one that is not a machine, or not available to the
    subscription there."""
    name = str(row.get("name") or "")
    if row.get("resourceType") != "virtualMachines" or _OTHER_IMAGES.search(name):
        return None
    zones = {
        str(zone)
        for location in row.get("locationInfo") or ()
        if str(location.get("location", "")).lower() == region.lower()
        for zone in location.get("zones") or ()
    }
    for restriction in row.get("restrictions") or ():
        if restriction.get("type") == "Location":
            return None
        if restriction.get("type") == "Zone":
            info = restriction.get("restrictionInfo") or {}
            zones -= {str(zone) for zone in info.get("zones") or ()}
    capabilities = {
        str(capability.get("name")): str(capability.get("value"))
        for capability in row.get("capabilities") or ()
    }
    count = int(_number(capabilities.get("GPUs")))
    if _PART_OF_A_GPU.search(name):
        return None
    return Size(
        name=name,
        cpus=_number(capabilities.get("vCPUsAvailable") or capabilities.get("vCPUs")),
        memory_gib=_number(capabilities.get("MemoryGB")),
        zones=tuple(sorted(zones)),
        accelerator=accelerator_of(name) if count else "",
        accelerator_count=count,
        spot=capabilities.get("LowPriorityCapable") == "True",
        infiniband=capabilities.get("RdmaEnabled") == "True",
    )


def accelerator_of(size: str) -> str:
    """Return the GPU in a size's name; "" for an unknown one."""
    for pattern, model in _MODELS:
        match = pattern.search(size)
        if match:
            return model or match[1]
    return ""


def _number(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0
