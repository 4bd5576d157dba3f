"""The GCP adapter passes the conformance suite, against Compute Engine's protocol on this
computer."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import pytest

from providers.base import LaunchRequest, Provider
from providers.gcp.cloud import GcpCloud
from tests.clouds.faults import Fault
from tests.clouds.gcp.market import REGIONS
from tests.clouds.gcp.serving import StandIn
from tests.fixtures.local_cloud import launch_request
from tests.providers.conformance import CannotPlay, ProviderConformance
from tests.providers.fault_table import FaultTable
from tests.providers.gcp.conftest import connected

CALLS = {
    "launch": ("compute.instances.insert",),
    "terminate": ("compute.instances.delete",),
    "list": ("compute.instances.aggregatedList",),
    "notices": ("compute.globalOperations.aggregatedList",),
    "renew": ("compute.instances.get", "compute.instances.setLabels"),
    "offers": ("compute.machineTypes.aggregatedList",),
    "leftovers": ("compute.disks.aggregatedList",),
    "discard": ("compute.disks.delete",),
}
_numbers = itertools.count()


class GcpRig:
    """Every test has a project of its own."""

    def __init__(self, gcp: StandIn) -> None:
        self._gcp = gcp
        self._project = f"p{next(_numbers)}"

    def provider(self, deployment: str = "one", *, timeout_s: float = 10.0) -> Provider:
        return GcpCloud(
            "gcp",
            deployment,
            project=self._project,
            regions=REGIONS,
            timeout_s=timeout_s,
            patience_s=0.3,
            clients=connected(self._gcp, self._project, timeout_s),
            **self._gcp.settings,
        )

    def request(self, provider: Provider, token: str) -> LaunchRequest:
        """Its name is its token, as the product's is, except for invalid names."""
        request = launch_request(provider, token)
        return dataclasses.replace(request, name=token.replace("_", "-"))

    def break_next(self, what: str, operation: str = "launch") -> None:
        if what == "price":
            raise CannotPlay("Compute Engine takes no bids and refuses none")
        self._gcp.gce.faults.arm(Fault(what, CALLS[operation]))


class TestGcp(ProviderConformance):
    @pytest.fixture
    def rig(self, standin: StandIn) -> Iterator[GcpRig]:
        yield GcpRig(standin)
        standin.gce.faults.clear()
        assert standin.gce.problems == []


class TestGcpFaults(FaultTable):
    make = "gcp"

    @pytest.fixture
    def rig(self, standin: StandIn) -> Iterator[GcpRig]:
        yield GcpRig(standin)
        standin.gce.faults.clear()
        assert standin.gce.problems == []
