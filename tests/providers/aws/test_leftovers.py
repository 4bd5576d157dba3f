"""Leftovers of machines, in moto's format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from providers.base import LeftoverKind, RejectedError, UnknownOutcome
from tests.clouds.aws.serving import PROFILE, StandIn
from tests.clouds.faults import Fault
from tests.providers.aws.conftest import Rented


@pytest.fixture
def ec2(aws: StandIn) -> Iterator[Any]:
    """EC2 as another user of the account."""
    client = boto3.Session(profile_name=PROFILE).client("ec2", region_name="us-east-1")
    yield client
    client.close()


def tagged(rented: Rented, kind: str) -> list[dict[str, Any]]:
    tag = {"Key": "spotd-deployment", "Value": rented.deployment}
    return [{"ResourceType": kind, "Tags": [tag]}]


def volume(rented: Rented, ec2: Any) -> str:
    specifications = tagged(rented, "volume")
    zone = "us-east-1a"
    made = ec2.create_volume(Size=8, AvailabilityZone=zone, TagSpecifications=specifications)
    return str(made["VolumeId"])


def card(rented: Rented, ec2: Any) -> str:
    subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
    tags = tagged(rented, "network-interface")
    made = ec2.create_network_interface(SubnetId=subnet, TagSpecifications=tags)
    return str(made["NetworkInterface"]["NetworkInterfaceId"])


def address(rented: Rented, ec2: Any) -> str:
    tags = tagged(rented, "elastic-ip")
    return str(ec2.allocate_address(Domain="vpc", TagSpecifications=tags)["AllocationId"])


def group(rented: Rented, ec2: Any) -> str:
    name, tags = f"spotd-{rented.deployment}", tagged(rented, "placement-group")
    ec2.create_placement_group(GroupName=name, Strategy="cluster", TagSpecifications=tags)
    return name


MAKERS = {
    LeftoverKind.DISK: volume,
    LeftoverKind.NETWORK_INTERFACE: card,
    LeftoverKind.ADDRESS: address,
    LeftoverKind.GROUP: group,
}


@pytest.mark.parametrize("kind", MAKERS)
def test_it_is_found_and_goes(rented: Rented, ec2: Any, kind: LeftoverKind) -> None:
    made = MAKERS[kind](rented, ec2)
    cloud = rented.cloud()
    [left] = cloud.leftovers()
    assert (left.leftover_id, left.kind) == (f"us-east-1/{made}", kind)
    assert left.tags == {"spotd-deployment": rented.deployment}
    assert left.region == "us-east-1"
    if kind is LeftoverKind.DISK:
        assert left.zone == "us-east-1a"
        assert left.since_us > 1_500_000_000_000_000
    assert Rented(rented.aws).cloud().leftovers() == []
    cloud.discard(left.leftover_id)
    assert cloud.leftovers() == []
    cloud.discard(left.leftover_id)  # gone already


def test_what_hangs_on_a_machine_is_no_leftover_and_is_never_taken_from_it(
    rented: Rented, ec2: Any
) -> None:
    cloud = rented.cloud()
    cloud.launch(rented.request("holds"))
    instance = cloud.list()[0].instance_id.partition("/")[2]
    disk, loose = volume(rented, ec2), address(rented, ec2)
    ec2.attach_volume(VolumeId=disk, InstanceId=instance, Device="/dev/sdf")
    ec2.associate_address(AllocationId=loose, InstanceId=instance)
    assert cloud.leftovers() == []
    with pytest.raises(RejectedError, match="VolumeInUse"):
        cloud.discard(f"us-east-1/{disk}")
    [stored] = ec2.describe_volumes(VolumeIds=[disk])["Volumes"]
    assert stored["State"] == "in-use"


def test_what_is_being_made_or_used_elsewhere_stays(rented: Rented, ec2: Any) -> None:
    """EC2's message for an interface in use is that of a wrong parameter."""
    made = card(rented, ec2)
    rented.aws.ec2.faults.arm(Fault("in_use", ("DeleteNetworkInterface",)))
    with pytest.raises(RejectedError, match="currently in use"):
        rented.cloud().discard(f"us-east-1/{made}")
    assert [leftover.leftover_id for leftover in rented.cloud().leftovers()] == [
        f"us-east-1/{made}"
    ]


def test_a_name_that_nothing_could_have_is_success_for_discard_alone(rented: Rented) -> None:
    """For terminate, the same code is not hidden."""
    cloud = rented.cloud()
    rented.aws.ec2.faults.arm(Fault("bad_value", ("DeleteVolume",)))
    cloud.discard("us-east-1/vol-x")
    rented.aws.ec2.faults.arm(Fault("bad_value", ("TerminateInstances",)))
    with pytest.raises(RejectedError):
        cloud.terminate("us-east-1/i-0123456789abcdef0")


@pytest.mark.parametrize(
    "nobodys",
    [
        "vol-0123456789abcdef0",
        "eni-0123456789abcdef0",
        "eipalloc-0123456789abcdef0",
        "spotd-nobodys",
    ],
)
def test_an_unknown_one_is_success(rented: Rented, nobodys: str) -> None:
    rented.cloud().discard(f"us-east-1/{nobodys}")


def test_of_another_kind_is_left_alone(rented: Rented) -> None:
    rented.cloud().discard("us-east-1/i-0123456789abcdef0")
    assert rented.actions() == []


@pytest.mark.parametrize(
    "action",
    [
        "DescribeVolumes",
        "DescribeNetworkInterfaces",
        "DescribeAddresses",
        "DescribePlacementGroups",
    ],
)
def test_half_a_look_is_none(rented: Rented, action: str) -> None:
    rented.aws.ec2.faults.arm(Fault("http_500", (action,)))
    with pytest.raises(UnknownOutcome):
        rented.cloud().leftovers()
