"""Parse Compute Engine's machine types into the terms of job specs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_MIB_PER_GIB = 1024
LOCAL_DISK_GIB = 375  # size of each included local SSD
# guestAcceleratorType -> name in job specs. Others keep the vendor's name.
_ACCELERATORS = {
    "nvidia-l4": "L4",
    "nvidia-tesla-t4": "T4",
    "nvidia-tesla-v100": "V100",
    "nvidia-tesla-p100": "P100",
    "nvidia-tesla-a100": "A100",
    "nvidia-a100-80gb": "A100-80GB",
    "nvidia-h100-80gb": "H100",
    "nvidia-h100-mega-80gb": "H100",
    "nvidia-h200-141gb": "H200",
    "nvidia-b200": "B200",
}


@dataclass(frozen=True)
class MachineType:
    """`card` is Google's name of the accelerator, `local_gib` the size of the included local
    disks."""

    name: str
    cpus: int
    memory_gib: float
    accelerator: str = ""
    accelerator_count: int = 0
    card: str = ""
    local_gib: int = 0


def read_type(row: Any) -> MachineType:
    """Parse a MachineType of the API. Accelerators that are attached at creation (N1) do not
    count."""
    card, count = "", 0
    for accelerator in row.accelerators:
        card = accelerator.guest_accelerator_type
        count += accelerator.guest_accelerator_count
    return MachineType(
        name=row.name,
        cpus=row.guest_cpus,
        memory_gib=row.memory_mb / _MIB_PER_GIB,
        accelerator=_ACCELERATORS.get(card, card),
        accelerator_count=count,
        card=card,
        local_gib=row.bundled_local_ssds.partition_count * LOCAL_DISK_GIB,
    )
