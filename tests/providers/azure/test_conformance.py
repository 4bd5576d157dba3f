"""The Azure adapter passes the conformance suite, over TLS against Resource Manager's protocol on
this computer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from providers.azure.cloud import AzureCloud
from providers.azure.create_machine import PollSchedule
from providers.base import LaunchRequest, Provider
from tests.clouds.azure.catalog import REGIONS
from tests.clouds.azure.serving import StandIn
from tests.clouds.faults import Fault
from tests.fixtures.local_cloud import launch_request
from tests.providers.azure.rig import connected
from tests.providers.conformance import ProviderConformance
from tests.providers.fault_table import FaultTable

CALLS = {
    "launch": ("PUT virtualMachines",),
    "terminate": ("DELETE virtualMachines",),
    "list": ("LIST virtualMachines",),
    "renew": ("GET virtualMachines", "PATCH virtualMachines"),
    "offers": ("GET prices",),
    "leftovers": ("LIST disks",),
    "discard": ("DELETE disks",),
}
_numbers = itertools.count()


class AzureRig:
    """Every test has a resource group of its own, which its deployments share."""

    def __init__(self, azure: StandIn) -> None:
        self._azure = azure
        self._test = f"t{next(_numbers)}"

    def provider(self, deployment: str = "one", *, timeout_s: float = 10.0) -> Provider:
        settings = self._azure.settings | {"resource_group": self._test}
        return AzureCloud(
            "azure",
            f"{self._test}-{deployment}",
            regions=REGIONS,
            timeout_s=timeout_s,
            pace=PollSchedule(patience_s=0.2, poll_s=0.01),
            clients=connected(self._azure, timeout_s),
            **settings,
        )

    def request(self, provider: Provider, token: str) -> LaunchRequest:
        return launch_request(provider, token)

    def break_next(self, what: str, operation: str = "launch") -> None:
        self._azure.arm.faults.arm(Fault(what, CALLS[operation]))
        if what == "invisible" and operation == "leftovers":
            for kind in ("networkInterfaces", "publicIPAddresses"):
                self._azure.arm.faults.arm(Fault(what, (f"LIST {kind}",)))


class TestAzure(ProviderConformance):
    @pytest.fixture
    def rig(self, azure: StandIn) -> Iterator[AzureRig]:
        yield AzureRig(azure)
        azure.arm.faults.clear()


class TestAzureFaults(FaultTable):
    make = "azure"

    @pytest.fixture
    def rig(self, azure: StandIn) -> Iterator[AzureRig]:
        yield AzureRig(azure)
        azure.arm.faults.clear()
