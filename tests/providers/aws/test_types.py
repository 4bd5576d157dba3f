"""Machine types in the terms of job specs, from rows of DescribeInstanceTypes."""

from __future__ import annotations

from typing import Any

import pytest

from providers.aws.types import MachineType, read_type


def row(name: str, **more: Any) -> dict[str, Any]:
    reported = {"InstanceType": name, "VCpuInfo": {"DefaultVCpus": 96}}
    return reported | {"MemoryInfo": {"SizeInMiB": 1_179_648}} | more


def gpus(name: str, count: int, memory_mib: int) -> dict[str, Any]:
    gpu = {"Name": name, "Manufacturer": "NVIDIA", "Count": count}
    return {"GpuInfo": {"Gpus": [gpu | {"MemoryInfo": {"SizeInMiB": memory_mib}}]}}


def network(supported: bool, **efa: int) -> dict[str, Any]:
    return {"NetworkInfo": {"EfaSupported": supported, "EfaInfo": efa}}


@pytest.mark.parametrize(
    ("told", "accelerator", "count", "efa_cards"),
    [
        (
            row(
                "p5.48xlarge",
                **gpus("H100", 8, 81_920),
                **network(True, MaximumEfaInterfaces=32),
            ),
            "H100",
            8,
            32,
        ),
        (row("p4d.24xlarge", **gpus("A100", 8, 40_960)), "A100", 8, 0),
        (row("p4de.24xlarge", **gpus("A100", 8, 81_920)), "A100-80GB", 8, 0),
        (row("g5.xlarge", **gpus("A10G", 1, 24_576), **network(False)), "A10G", 1, 0),
        (row("m7i.large", **network(False, MaximumEfaInterfaces=1)), "", 0, 0),
        (row("hpc7a.96xlarge", **network(True)), "", 0, 0),
        (
            row("trn1.32xlarge", NeuronInfo={"NeuronDevices": [{"Name": "Trainium", "Count": 16}]}),
            "Trainium",
            16,
            0,
        ),
    ],
)
def test_what_a_type_has(
    told: dict[str, Any], accelerator: str, count: int, efa_cards: int
) -> None:
    result = read_type(told)
    assert (result.accelerator, result.accelerator_count) == (accelerator, count)
    assert result.efa_cards == efa_cards
    assert (result.cpus, result.memory_gib) == (96.0, 1152.0)


def test_a_row_that_says_little() -> None:
    assert read_type({"InstanceType": "x1"}) == MachineType("x1", 0.0, 0.0)
