"""What Azure's machine sizes have, from the list of SKUs, in the words of job specs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# By what the size's name says. A100 is the one of 40 GB in the old ND series, of 80 GB elsewhere.
_MODELS = (
    (re.compile(r"_ND96asr(_A100)?_v4$"), "A100"),
    (re.compile(r"_A100_"), "A100-80GB"),
    (re.compile(r"_(GB\d+|H\d+|B\d+|A10|T4|L4|L40S|MI\d+X)_"), ""),
    (re.compile(r"_NC\d+r?s_v3$|_ND\d+rs_v2$"), "V100"),
    (re.compile(r"_NC\d+r?s_v2$"), "P100"),
)
# A size with a sixth, a third or half of an A10 says that it has one GPU.
_PART_OF_A_GPU = re.compile(r"_NV(6|12|18)ads_A10_v5$")
# Confidential ones (NCC) need images of their own.
_OTHER_IMAGES = re.compile(r"^Standard_NCC")


@dataclass(frozen=True)
class Size:
    """One size in one region. `zones` are those where the subscription may have it; `regional` that
    it may have it at all where no zone is named."""

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
    """One row of the SKUs; None for what is no machine, or not for us to have there."""
    name = str(row.get("name") or "")
    if row.get("resourceType") != "virtualMachines" or _OTHER_IMAGES.search(name):
        return None
    zones = {
        str(zone)
        for place in row.get("locationInfo") or ()
        if str(place.get("location", "")).lower() == region.lower()
        for zone in place.get("zones") or ()
    }
    for restriction in row.get("restrictions") or ():
        if restriction.get("type") == "Location":
            return None
        if restriction.get("type") == "Zone":
            info = restriction.get("restrictionInfo") or {}
            zones -= {str(zone) for zone in info.get("zones") or ()}
    told = {str(one.get("name")): str(one.get("value")) for one in row.get("capabilities") or ()}
    count = int(_number(told.get("GPUs")))
    if _PART_OF_A_GPU.search(name):
        return None
    return Size(
        name=name,
        cpus=_number(told.get("vCPUsAvailable") or told.get("vCPUs")),
        memory_gib=_number(told.get("MemoryGB")),
        zones=tuple(sorted(zones)),
        accelerator=accelerator_of(name) if count else "",
        accelerator_count=count,
        spot=told.get("LowPriorityCapable") == "True",
        infiniband=told.get("RdmaEnabled") == "True",
    )


def accelerator_of(size: str) -> str:
    """The GPU that a size is named for; "" for one that no rule here names."""
    for pattern, model in _MODELS:
        found = pattern.search(size)
        if found:
            return model or found[1]
    return ""


def _number(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0
