"""The provider conformance suite on each personality of the local cloud."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from providers.base import LaunchRequest, Provider
from providers.local.cloud import LocalCloud
from providers.local.control import RunningCloud
from providers.local.scenario import PERSONALITIES
from tests.fixtures.local_cloud import launch_request
from tests.providers.conformance import ProviderConformance
from tests.providers.fault_table import FaultTable


class LocalRig:
    """Injects faults through the control API. Each test uses its own tokens and deployment."""

    def __init__(self, local: RunningCloud, personality: str, test: str) -> None:
        self._local = local
        self._personality = personality
        self._test = test

    def provider(self, deployment: str = "one", *, timeout_s: float = 10.0) -> Provider:
        name = f"local-{self._personality}"
        deployment = f"{self._test}-{deployment}"
        return LocalCloud(
            name,
            self._local.url,
            self._personality,
            deployment,
            timeout_s,
            token_file=self._local.token_file,
        )

    def request(self, provider: Provider, token: str) -> LaunchRequest:
        return launch_request(provider, token)

    def break_next(self, fault: str, operation: str = "launch") -> None:
        kind = "delay" if fault == "hang" else fault
        self._local.control.fault(
            operation=operation, kind=kind, seconds=8.0, personality=self._personality
        )


class TestLocalCloud(ProviderConformance):
    @pytest.fixture(params=PERSONALITIES)
    def rig(self, local: RunningCloud, request: pytest.FixtureRequest) -> Iterator[LocalRig]:
        yield from rigs(local, request.param, request.node.name)


class TestLocalFaults(FaultTable):
    make = "local"

    @pytest.fixture
    def rig(self, local: RunningCloud, request: pytest.FixtureRequest) -> Iterator[LocalRig]:
        yield from rigs(local, "aws", request.node.name)


def rigs(local: RunningCloud, personality: str, test: str) -> Iterator[LocalRig]:
    """A local cloud whose state is discarded afterwards."""
    yield LocalRig(local, personality, test)
    for machine in local.control.state()["instances"]:
        if machine["state"] == "running":
            LocalCloud(
                "x", local.url, machine["personality"], "x", token_file=local.token_file
            ).terminate(machine["instance_id"])
    local.control.clear_faults()
