"""Prerequisites of machines in a region: found by tag, cached for ten minutes; and the message when
one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from providers.aws.network import CACHE_S, IMAGE, ZoneSetups
from providers.base import Scope, UnknownOutcome, UnpreparedError
from tests.clouds.aws.serving import PROFILE, StandIn
from tests.clouds.faults import Fault
from tests.providers.aws.conftest import Rented, connected

BARE = "eu-central-1"  # a region of the stand-in where no test has tagged anything


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def ec2(aws: StandIn) -> Iterator[Any]:
    client = boto3.Session(profile_name=PROFILE).client("ec2", region_name=BARE)
    yield client
    client.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def sites(clock: Clock, image: str = IMAGE, network: str = "public") -> ZoneSetups:
    return ZoneSetups(connected(), image, network, "a-role", clock)


def tag(ec2: Any, *resources: str) -> None:
    ec2.create_tags(Resources=[*resources], Tags=[{"Key": "spotd-network", "Value": "public"}])


def untag(ec2: Any, *resources: str) -> None:
    ec2.delete_tags(Resources=[*resources], Tags=[{"Key": "spotd-network"}])


def test_a_site(rented: Rented, clock: Clock) -> None:
    here = sites(clock)
    result = here.for_zone("us-east-1", "us-east-1a")
    assert result.image_id == rented.aws.ec2.image
    assert result.root_device.startswith("/dev/")
    assert result.subnet_id != here.for_zone("us-east-1", "us-east-1b").subnet_id
    assert (result.public, result.role) == (True, "a-role")
    assert len(result.group_ids) == 1


def test_it_is_asked_for_once_in_ten_minutes(rented: Rented, clock: Clock) -> None:
    here = sites(clock)
    for _ in range(3):
        here.for_zone("us-east-1", "us-east-1a")
        here.for_zone("us-east-1", "us-east-1b")
    once = ["DescribeSubnets", "DescribeSecurityGroups", "GetParameter", "DescribeImages"]
    assert rented.actions() == once
    clock.now_s += CACHE_S + 1
    here.for_zone("us-east-1", "us-east-1a")
    assert rented.actions() == once * 2


def test_what_is_missing_and_mended_is_found_within_ten_minutes(
    rented: Rented, clock: Clock, ec2: Any
) -> None:
    here = sites(clock, rented.aws.ec2.image)
    fix = f"run `spotctl init aws --network public --region {BARE}`"
    zone = f"{BARE}a"
    with pytest.raises(UnpreparedError) as caught:
        here.for_zone(BARE, zone)
    assert str(caught.value) == (
        f"{zone} has no subnet with the tag spotd-network=public (no zone of {BARE} has one): {fix}"
    )
    assert caught.value.scope is Scope.REGION
    rows = {row["AvailabilityZone"]: row["SubnetId"] for row in ec2.describe_subnets()["Subnets"]}
    group = ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"]
    try:
        tag(ec2, rows[f"{BARE}b"])
        clock.now_s += CACHE_S + 1
        with pytest.raises(UnpreparedError, match=rf"\({BARE}b of {BARE} has one\)"):
            here.for_zone(BARE, zone)
        tag(ec2, rows[zone])
        with pytest.raises(UnpreparedError, match="no subnet"):
            here.for_zone(BARE, zone)  # still what it knew
        clock.now_s += CACHE_S + 1
        with pytest.raises(UnpreparedError) as caught:
            here.for_zone(BARE, zone)
        text = f"{BARE} has no security group with the tag spotd-network=public: {fix}"
        assert str(caught.value) == text
        tag(ec2, group)
        clock.now_s += CACHE_S + 1
        assert here.for_zone(BARE, zone).subnet_id == rows[zone]
    finally:
        untag(ec2, *rows.values(), group)


def test_of_two_subnets_in_a_zone_it_is_always_the_same(
    rented: Rented, clock: Clock, ec2: Any
) -> None:
    vpc = ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
    location = {"VpcId": vpc, "AvailabilityZone": f"{BARE}c"}
    blocks = ("172.31.200.0/24", "172.31.201.0/24", "172.31.202.0/24")
    made = [
        ec2.create_subnet(**location, CidrBlock=block)["Subnet"]["SubnetId"] for block in blocks
    ]
    group = ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"]
    try:
        tag(ec2, *made, group)
        image = rented.aws.ec2.image
        assert sites(clock, image).for_zone(BARE, f"{BARE}c").subnet_id == min(made)
    finally:
        untag(ec2, *made, group)


def test_a_network_of_another_kind_is_none(rented: Rented, clock: Clock) -> None:
    with pytest.raises(UnpreparedError, match="--network jump --region us-east-1"):
        sites(clock, network="jump").for_zone("us-east-1", "us-east-1a")


@pytest.mark.parametrize(
    ("image", "said"),
    [
        ("ami-00000000000000000", "ami-00000000000000000"),
        ("ssm:/spotd/no-such-parameter", "/spotd/no-such-parameter"),
    ],
)
def test_an_image_that_is_gone(rented: Rented, clock: Clock, image: str, said: str) -> None:
    with pytest.raises(UnpreparedError, match="by `image` of the provider or image_id") as caught:
        sites(clock).for_zone("us-east-1", "us-east-1a", image)
    assert f"us-east-1 has no image {image} that this account may use" in str(caught.value)
    assert said in str(caught.value)
    # The provider's own is there.
    assert sites(clock).for_zone("us-east-1", "us-east-1a").image_id == rented.aws.ec2.image


@pytest.mark.parametrize("action", ["DescribeSubnets", "DescribeSecurityGroups", "DescribeImages"])
def test_what_could_not_be_asked_is_not_missing(rented: Rented, clock: Clock, action: str) -> None:
    here = sites(clock)
    rented.aws.ec2.faults.arm(Fault("http_500", (action,)))
    with pytest.raises(UnknownOutcome):
        here.for_zone("us-east-1", "us-east-1a")
    assert here.for_zone("us-east-1", "us-east-1a").subnet_id  # and is asked for again at once
