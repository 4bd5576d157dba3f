"""A stand-in for each module, and for each test a project of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from providers.base import CapacityType, LaunchRequest
from providers.gcp.cloud import GcpCloud
from tests.clouds.faults import Fault
from tests.clouds.gcp.gce import Gce
from tests.clouds.gcp.market import REGIONS, Market
from tests.clouds.gcp.serving import StandIn, serving
from tests.clouds.gcp.state import Project
from tests.rigs.local_cloud import host_key, user_key

_numbers = itertools.count()


@dataclass(frozen=True)
class Lab:
    """A project, and adapters for it."""

    standin: StandIn
    name: str

    @property
    def gce(self) -> Gce:
        return self.standin.gce

    @property
    def project(self) -> Project:
        return self.gce.project(self.name)

    def cloud(self, deployment: str = "d0", **settings: Any) -> GcpCloud:
        given: dict[str, Any] = {"project": self.name, "regions": REGIONS, "patience_s": 2.0}
        return GcpCloud("gcp", deployment, **(given | self.standin.settings | settings))

    def fault(self, what: str, call: str, seconds: float = 1.0) -> None:
        """The next call of that method goes wrong."""
        self.gce.faults.arm(Fault(what, (f"compute.{call}",), seconds))

    def calls(self) -> list[str]:
        """The methods asked for since the last look."""
        found = [call.method.removeprefix("compute.") for call in self.gce.calls]
        self.gce.calls.clear()
        return found


def request(name: str, **changes: Any) -> LaunchRequest:
    """A spot request for an 8xH100, as the product makes them: its name is its token."""
    facts: dict[str, Any] = {
        "token": name,
        "name": name,
        "region": "us-central1",
        "zone": "us-central1-a",
        "instance_type": "a3-highgpu-8g",
        "capacity_type": CapacityType.SPOT,
        "tags": {"spotd-job": "j1"},
        "ssh_user": "spotd",
        "ssh_public_key": user_key().public,
        "host_private_key": host_key().private,
        "host_public_key": host_key().public,
    }
    return LaunchRequest(**(facts | changes))


@pytest.fixture(scope="module")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    with serving(tmp_path_factory.mktemp("gcp")) as running:
        yield running


@pytest.fixture
def lab(standin: StandIn) -> Iterator[Lab]:
    gce = standin.gce
    gce.calls.clear()
    yield Lab(standin, f"lab{next(_numbers)}")
    gce.faults.clear()
    gce.page, gce.unreachable = 500, set()
    gce.market.__dict__.update(Market().__dict__)
    gce.machines.delay_s = gce.machines.boot_s = 0.02
    gce.machines.publishes_keys, standin.identity.revoked = True, False
    gce.machines.subnetworks = {"spotd"}
    assert gce.problems == []
