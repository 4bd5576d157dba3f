"""The AWS adapter passes the conformance suite, against EC2's protocol on this computer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from providers.aws.cloud import AwsCloud
from providers.base import LaunchRequest, Provider
from tests.clouds.aws.market import REGIONS
from tests.clouds.aws.serving import PROFILE, StandIn
from tests.clouds.faults import Fault
from tests.fixtures.local_cloud import launch_request
from tests.providers.aws.conftest import connected
from tests.providers.conformance import ProviderConformance
from tests.providers.fault_table import FaultTable

CALLS = {
    "launch": ("RunInstances",),
    "terminate": ("TerminateInstances",),
    "list": ("DescribeInstances",),
    "notices": ("DescribeSpotInstanceRequests",),
    "renew": ("DescribeInstances", "CreateTags"),
    "offers": ("DescribeSpotPriceHistory",),
    "leftovers": ("DescribeVolumes",),
    "discard": ("DeleteVolume",),
}
_numbers = itertools.count()


class AwsRig:
    """Every test has a deployment of its own."""

    def __init__(self, aws: StandIn) -> None:
        self._aws = aws
        self._test = f"t{next(_numbers)}"

    def provider(self, deployment: str = "one", *, timeout_s: float = 10.0) -> Provider:
        return AwsCloud(
            "aws",
            f"{self._test}-{deployment}",
            regions=REGIONS,
            profile=PROFILE,
            instance_types=("p5.*", "g6.*"),
            timeout_s=timeout_s,
            clients=connected(timeout_s),
        )

    def request(self, provider: Provider, token: str) -> LaunchRequest:
        return launch_request(provider, token)

    def break_next(self, what: str, operation: str = "launch") -> None:
        # What one region does not sell others may: the market fails when all of them do.
        everywhere = operation == "offers" or (
            what == "invisible" and operation in ("list", "leftovers")
        )
        for _ in REGIONS if everywhere else ("one",):
            self._aws.ec2.faults.arm(Fault(what, CALLS[operation]))


class TestAws(ProviderConformance):
    @pytest.fixture
    def rig(self, aws: StandIn) -> Iterator[AwsRig]:
        yield AwsRig(aws)
        aws.ec2.faults.clear()


class TestAwsFaults(FaultTable):
    make = "aws"

    @pytest.fixture
    def rig(self, aws: StandIn) -> Iterator[AwsRig]:
        yield AwsRig(aws)
        aws.ec2.faults.clear()
