"""The launch request on the wire, as the stand-in received it. docs/clouds/aws.md shows the same
lines."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
import pytest

from providers import cloud_init
from providers.aws.cloud import AwsCloud
from providers.base import CapacityType, ProviderError, RejectedError, UnknownOutcome
from tests.clouds.aws.market import REGIONS
from tests.clouds.aws.serving import PROFILE, StandIn
from tests.clouds.faults import Fault
from tests.providers.aws.conftest import Rented

GOLDEN = Path(__file__).with_name("golden")
PAGE = Path(__file__).parents[3] / "docs" / "clouds" / "aws.md"
# name -> (changes of the request, settings of the provider); others are compared with "spot"
LAUNCHES: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "spot": ({}, {}),
    "price_cap": ({"max_price_microusd_per_h": 21_500_000}, {}),
    "on_demand": ({"capacity_type": CapacityType.ON_DEMAND}, {}),
    "reserved": (
        {"capacity_type": CapacityType.RESERVED, "reservation": "cr-0123456789abcdef0"},
        {},
    ),
    "capacity_block": (
        {"capacity_type": CapacityType.BLOCK, "reservation": "cr-0123456789abcdef0"},
        {},
    ),
    "efa": ({"interconnect": "efa", "gang": "spotd-j1-1"}, {}),
    "private_with_role": ({"disk_gib": 500}, {"network": "private", "node_role": "spotd-node-d0"}),
}
_MASKS = {
    r"^subnet-\w+$": "subnet-1a",
    r"^sg-\w+$": "sg-1",
    r"^ami-\w+$": "ami-1",
    r"^unit\d+$": "DEPLOYMENT",
    r"^unit\d+-\w+$": "TOKEN",
    r"^i-\w+$": "i-1",
}


def lines(body: Mapping[str, Any]) -> list[str]:
    """Return the request, one parameter per line in wire order; values that differ between runs are
    replaced by names."""
    result = []
    for key, value in body.items():
        shown = str(value)
        for pattern, name in _MASKS.items():
            shown = re.sub(pattern, name, shown)
        if key == "UserData":
            assert base64.b64decode(shown).startswith(b"#cloud-config\n")
            shown = "(base64 of the cloud-config)"
        result.append(f"{key}={shown}")
    return result


def golden(name: str, found: list[str]) -> list[str]:
    """Return the lines of the golden file; SPOTD_WRITE_GOLDEN=1 writes `found` into it."""
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("SPOTD_WRITE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(found) + "\n")
    return file.read_text().splitlines()


@pytest.fixture(scope="module", autouse=True)
def _account(aws: StandIn) -> Iterator[None]:
    """The role of machines, and a private network in addition to the public one."""
    session = boto3.Session(profile_name=PROFILE, region_name="us-east-1")
    iam: Any = session.client("iam")
    ec2: Any = session.client("ec2")
    iam.create_instance_profile(InstanceProfileName="spotd-node-d0")
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    location = {"VpcId": vpc, "AvailabilityZone": "us-east-1a", "CidrBlock": "10.9.0.0/20"}
    subnet = ec2.create_subnet(**location)["Subnet"]["SubnetId"]
    group = ec2.create_security_group(GroupName="p", Description="p", VpcId=vpc)["GroupId"]
    tag = [{"Key": "spotd-network", "Value": "private"}]
    ec2.create_tags(Resources=[subnet, group], Tags=tag)
    yield
    iam.delete_instance_profile(InstanceProfileName="spotd-node-d0")
    ec2.delete_security_group(GroupId=group)
    for client in (iam, ec2):
        client.close()


def sent(rented: Rented, action: str) -> list[dict[str, Any]]:
    return [dict(item.body) for item in rented.aws.ec2.seen if item.action == action]


@pytest.mark.parametrize("name", LAUNCHES)
def test_the_body_of_a_launch(rented: Rented, name: str) -> None:
    changes, settings = LAUNCHES[name]
    rented.cloud(**settings).launch(rented.request(name, **changes))
    [body] = sent(rented, "RunInstances")
    result = lines(body)
    assert result == golden(name, result)


def test_a_machine_gets_exactly_its_cloud_config(rented: Rented) -> None:
    """Encoded once: cloud-init reads the document itself."""
    request = rented.request("userdata")
    rented.cloud().launch(request)
    [body] = sent(rented, "RunInstances")
    assert base64.b64decode(body["UserData"]).decode() == cloud_init.user_data(request)


def test_the_body_of_a_terminate(rented: Rented) -> None:
    cloud = rented.cloud()
    cloud.launch(rented.request("ends"))
    cloud.terminate(cloud.list()[0].instance_id)
    result = lines(sent(rented, "TerminateInstances")[0])
    assert result == golden("terminate", result)


@pytest.mark.parametrize("name", LAUNCHES)
def test_tags_are_on_everything_from_its_creation(rented: Rented, name: str) -> None:
    changes, settings = LAUNCHES[name]
    request = rented.request(f"tags-{name}", **changes)
    rented.cloud(**settings).launch(request)
    [body] = sent(rented, "RunInstances")
    kinds = {value: key for key, value in body.items() if key.endswith(".ResourceType")}
    spot = {"spot-instances-request"} if request.capacity_type is CapacityType.SPOT else set()
    assert set(kinds) == {"instance", "volume", "network-interface"} | spot
    wanted = {**request.tags, "spotd-deployment": rented.deployment}
    for key in kinds.values():
        prefix = key.removesuffix("ResourceType") + "Tag."
        numbers = {k.removeprefix(prefix).partition(".")[0] for k in body if k.startswith(prefix)}
        tags = {body[f"{prefix}{n}.Key"]: body[f"{prefix}{n}.Value"] for n in numbers}
        assert tags == wanted
    assert "CreateTags" not in rented.actions()


def test_a_token_counts_in_the_subnet_of_its_zone(rented: Rented) -> None:
    """RunInstances names a subnet, never only a zone or a region: there the token is zonal, and the
    same token in another zone is another machine."""
    cloud = rented.cloud()
    for zone in ("us-east-1a", "us-east-1b"):
        for _ in range(2):
            cloud.launch(rented.request("zonal", zone=zone))
    assert {machine.zone: machine.token for machine in cloud.list()} == {
        "us-east-1a": rented.request("zonal").token,
        "us-east-1b": rented.request("zonal").token,
    }
    assert len(cloud.list()) == 2
    subnets = {body["NetworkInterface.1.SubnetId"] for body in sent(rented, "RunInstances")}
    assert len(subnets) == 2


@pytest.mark.parametrize("what", ["no_capacity", "throttled", "http_500", "garbage", "lost_reply"])
def test_the_sdk_never_repeats_a_create(rented: Rented, what: str) -> None:
    cloud = rented.cloud(timeout_s=2.0)
    rented.aws.ec2.faults.arm(Fault(what, ("RunInstances",)))
    with pytest.raises(ProviderError):
        cloud.launch(rented.request(f"once-{what}"))
    assert rented.actions("RunInstances") == ["RunInstances"]


def test_a_replay_finds_its_machine_although_the_image_is_newer(rented: Rented) -> None:
    """The image parameter names another image by now: another body, the same machine."""
    request = rented.request("newer")
    first = rented.cloud().launch(request)
    image = rented.aws.ec2.image
    images = [row.id for row in _images(rented)]
    try:
        rented.aws.ec2.image = next(item for item in images if item != image)
        assert rented.cloud().launch(request) == first
    finally:
        rented.aws.ec2.image = image
    bodies = sent(rented, "RunInstances")
    assert bodies[0]["ImageId"] != bodies[1]["ImageId"]
    assert len(rented.cloud().list()) == 1


def test_a_replay_finds_its_machine_after_its_expiry_was_moved_on(rented: Rented) -> None:
    tags = {**rented.request("moved").tags, "spotd-expires": "1900000000"}
    request = rented.request("moved", tags=tags)
    cloud = rented.cloud()
    first = cloud.launch(request)
    cloud.renew(cloud.list()[0].instance_id, 1_900_003_600 * 1_000_000)
    image = rented.aws.ec2.image
    try:
        rented.aws.ec2.image = next(item.id for item in _images(rented) if item.id != image)
        assert rented.cloud().launch(request) == first
    finally:
        rented.aws.ec2.image = image


def test_a_token_of_a_machine_with_other_tags_is_rejected(rented: Rented) -> None:
    cloud = rented.cloud()
    cloud.launch(rented.request("taken"))
    other = rented.request("taken", tags={"spotd-job": "j2"})
    with pytest.raises(RejectedError, match="IdempotentParameterMismatch") as caught:
        cloud.launch(other)
    assert caught.value.code == "IdempotentParameterMismatch"
    assert len(cloud.list()) == 1


def test_the_search_for_a_machine_may_fail_too(rented: Rented) -> None:
    cloud = rented.cloud()
    cloud.launch(rented.request("unsure"))
    rented.aws.ec2.faults.arm(Fault("http_500", ("DescribeInstances",)))
    with pytest.raises(UnknownOutcome):
        cloud.launch(rented.request("unsure", tags={"spotd-job": "j2"}))


def test_a_container_runs_on_the_providers_own_image(rented: Rented) -> None:
    rented.cloud().launch(rented.request("boxed", image_id="docker:nvcr.io/nvidia/pytorch:25.01"))
    [body] = sent(rented, "RunInstances")
    assert body["ImageId"] == rented.aws.ec2.image


def test_efa_of_a_type_without_it_is_plain(rented: Rented) -> None:
    received = rented.request("plain", instance_type="g6.xlarge", interconnect="efa")
    rented.cloud().launch(received)
    [body] = sent(rented, "RunInstances")
    assert not [key for key in body if key.endswith("InterfaceType")]
    assert body["NetworkInterface.1.AssociatePublicIpAddress"] == "true"


@pytest.mark.parametrize("nobodys", ["i-0123456789abcdef0", "nowhere", ""])
def test_names_that_are_none_of_ours_reach_nobody(rented: Rented, nobodys: str) -> None:
    cloud: AwsCloud = rented.cloud()
    cloud.terminate(nobodys)
    cloud.renew(nobodys, 1)
    cloud.discard(nobodys)
    assert rented.actions() == []


def _images(rented: Rented) -> list[Any]:
    from moto.backends import get_backend

    assert rented.aws.ec2.image
    return list(get_backend("ec2")["123456789012"][REGIONS[0]].describe_images())[:3]
