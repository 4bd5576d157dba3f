from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache

import pytest

from providers.aws.clients import Clients
from providers.aws.cloud import AwsCloud
from providers.base import CapacityType, LaunchRequest
from tests.clouds.aws.market import REGIONS
from tests.clouds.aws.serving import PROFILE, StandIn, serving
from tests.fixtures.local_cloud import host_key, user_key

_numbers = itertools.count()


class Rented:
    """An adapter with a deployment of its own, and its received requests."""

    def __init__(self, aws: StandIn) -> None:
        self.aws = aws
        self.deployment = f"unit{next(_numbers)}"

    def cloud(self, **settings: object) -> AwsCloud:
        known: dict[str, object] = {"regions": REGIONS, "profile": PROFILE}
        known["instance_types"] = ("p5.*", "g6.*")
        known["clients"] = None if {"profile", "timeout_s"} & settings.keys() else connected()
        return AwsCloud("aws", self.deployment, **(known | settings))

    def request(self, token: str, **changes: object) -> LaunchRequest:
        """For one p5.48xlarge; always the same for the same token."""
        received: dict[str, object] = {
            "token": f"{self.deployment}-{token}",
            "name": f"spotd-{token}",
            "region": "us-east-1",
            "zone": "us-east-1a",
            "instance_type": "p5.48xlarge",
            "capacity_type": CapacityType.SPOT,
            "tags": {"spotd-job": "j1", "spotd-token": f"{self.deployment}-{token}"},
            "ssh_user": "spotd",
            "ssh_public_key": user_key().public,
            "host_private_key": host_key().private,
            "host_public_key": host_key().public,
        }
        return LaunchRequest(**(received | changes))  # type: ignore[arg-type]

    def actions(self, *wanted: str) -> list[str]:
        """Return the actions received since `forget`, of all services; only the `wanted` ones if
        any are named."""
        return [item.action for item in self.aws.ec2.seen if not wanted or item.action in wanted]

    def forget(self) -> None:
        self.aws.ec2.seen.clear()


@cache
def connected(timeout_s: float = 10.0) -> Clients:
    """Return the clients shared with other tests: creating a botocore client takes longer than most
    tests. For tests that are not about clients, and find the stand-in by its profile."""
    return Clients(PROFILE, timeout_s)


@pytest.fixture(scope="session")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    with serving(tmp_path_factory.mktemp("aws")) as running:
        yield running


@pytest.fixture(scope="module")
def aws(standing: StandIn) -> Iterator[StandIn]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in standing.environ.items():
            patch.setenv(name, value)
        yield standing


@pytest.fixture
def rented(aws: StandIn) -> Iterator[Rented]:
    aws.ec2.seen.clear()
    yield Rented(aws)
    aws.ec2.faults.clear()
    aws.ec2.told.clear()
    aws.ec2.reservations.clear()
    aws.ec2.images.state = "available"
