"""A stand-in for each module, and a project of its own for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from providers.base import CapacityType, LaunchRequest
from providers.gcp import cloud as adapter
from providers.gcp.clients import Clients
from providers.gcp.cloud import GcpCloud
from tests.clouds.faults import Fault
from tests.clouds.gcp.facts import Facts
from tests.clouds.gcp.gce import Gce
from tests.clouds.gcp.market import REGIONS, Market
from tests.clouds.gcp.serving import StandIn, serving
from tests.clouds.gcp.state import Project
from tests.fixtures.local_cloud import host_key, user_key

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
        passed: dict[str, Any] = {"project": self.name, "regions": REGIONS, "patience_s": 2.0}
        own = {"credentials_file", "compute_endpoint", "billing_endpoint", "timeout_s"}
        if not settings.keys() & own:
            passed["clients"] = connected(self.standin, self.name)
        return GcpCloud("gcp", deployment, **(passed | self.standin.settings | settings))

    def fault(self, what: str, call: str, seconds: float = 1.0) -> None:
        """Make the next call of that method fail."""
        self.gce.faults.arm(Fault(what, (f"compute.{call}",), seconds))

    def calls(self) -> list[str]:
        """Return the methods called since the last time."""
        result = [call.method.removeprefix("compute.") for call in self.gce.calls]
        self.gce.calls.clear()
        return result


def request(name: str, **changes: Any) -> LaunchRequest:
    """A spot request for an 8xH100; its name is its token, as the product makes them."""
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


@cache
def _first(standin: StandIn, timeout_s: float) -> Clients:
    services = ("compute", "cloudbilling", "cloudquotas", "cloudresourcemanager")
    places = dict.fromkeys(services, standin.endpoint)
    first = Clients("lab", standin.credentials_file, places, timeout_s)
    first._open_session()  # and its credentials
    return first


def connected(standin: StandIn, project: str, timeout_s: float = 10.0) -> Clients:
    """Return clients of a project that share connections and credentials with all others: creating
    them takes longer than most tests."""
    made = copy(_first(standin, timeout_s))
    made.project = project
    return made


@pytest.fixture(scope="session")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    with serving(tmp_path_factory.mktemp("gcp")) as running:
        yield running


@pytest.fixture(scope="module")
def standin(standing: StandIn) -> Iterator[StandIn]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapter, "POLL_S", 0.1)  # operations of the stand-in take 0.02 s
        yield standing


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
    gce.policies.slow = 1
    gce.facts.__dict__.update(vars(Facts(gce.machines, account=gce.facts.account)))
    assert gce.problems == []
