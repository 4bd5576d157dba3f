"""Parse EC2's machine types (DescribeInstanceTypes) into the terms of job specs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_MIB_PER_GIB = 1024
_A100_80GB_MIB = (
    80 * _MIB_PER_GIB
)  # the GPU of p4de has the same name as that of p4d, and twice the memory


@dataclass(frozen=True)
class MachineType:
    """`efa_cards` is the number of network cards that support EFA."""

    name: str
    cpus: float
    memory_gib: float
    accelerator: str = ""
    accelerator_count: int = 0
    efa_cards: int = 0


def read_type(row: Mapping[str, Any]) -> MachineType:
    """Parse a row of DescribeInstanceTypes."""
    gpus = (row.get("GpuInfo") or {}).get("Gpus") or ()
    neurons = (row.get("NeuronInfo") or {}).get("NeuronDevices") or ()
    name, count = "", 0
    if gpus:
        name, count = _accelerator(gpus[0]), sum(int(gpu.get("Count") or 0) for gpu in gpus)
    elif neurons:
        name, count = str(neurons[0].get("Name")), int(neurons[0].get("Count") or 0)
    network = row.get("NetworkInfo") or {}
    efa = (network.get("EfaInfo") or {}).get("MaximumEfaInterfaces") or 0
    return MachineType(
        name=row["InstanceType"],
        cpus=float((row.get("VCpuInfo") or {}).get("DefaultVCpus") or 0),
        memory_gib=((row.get("MemoryInfo") or {}).get("SizeInMiB") or 0) / _MIB_PER_GIB,
        accelerator=name,
        accelerator_count=count,
        efa_cards=int(efa) if network.get("EfaSupported") else 0,
    )


def _accelerator(gpu: Mapping[str, Any]) -> str:
    name = str(gpu.get("Name") or "")
    memory_mib = (gpu.get("MemoryInfo") or {}).get("SizeInMiB") or 0
    return "A100-80GB" if name == "A100" and memory_mib >= _A100_80GB_MIB else name
