"""Every call that the adapter makes, as the stand-in got it, the control box's policy allows;
the reaper may make two of them, and a machine none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from providers.aws.policy import policies
from providers.base import CapacityType, OfferRequest
from providers.policy import PolicyFacts
from tests.clouds.aws.ec2 import Seen
from tests.clouds.aws.market import REGIONS
from tests.clouds.aws.serving import PROFILE
from tests.clouds.faults import Fault
from tests.providers.aws.conftest import Rented
from tests.providers.evaluate import aws_allows

ACCOUNT = "123456789012"
QUEUE = "spotd-warnings"
PARTS = {
    "ImageId": "image",
    "Placement.GroupName": "placement-group",
    "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId": (
        "capacity-reservation"
    ),
}
# What a call needs is not always called as it is.
RIGHTS = {"sqs:DeleteMessageBatch": "sqs:DeleteMessage"}
DISCARDS = {
    "DeleteVolume": ("volume", "VolumeId"),
    "DeleteNetworkInterface": ("network-interface", "NetworkInterfaceId"),
    "ReleaseAddress": ("elastic-ip", "AllocationId"),
}

Need = tuple[str, str, dict[str, str]]  # action, resource, condition keys


def needs(seen: Seen, deployment: str) -> Iterator[Need]:
    """What AWS asks of the caller's policies for one call, by its Service Authorization
    Reference."""
    here = {"aws:RequestedRegion": seen.region}
    mine = here | {"aws:ResourceTag/spotd-deployment": deployment}
    service = "pricing" if seen.service == "pricing" else seen.service
    action = f"{service}:{seen.action}"
    action = RIGHTS.get(action, action)
    arn = f"arn:aws:{service}:{seen.region}:{ACCOUNT}:"
    if seen.action == "RunInstances":
        yield from _launch(seen, here, arn)
    elif seen.action == "CreateTags":
        keys = {v for k, v in seen.body.items() if k.startswith("Tag.") and k.endswith(".Key")}
        context = mine | {"aws:TagKeys": ",".join(sorted(keys))}
        yield action, f"{arn}instance/{seen.body['ResourceId.1']}", context
    elif seen.action == "TerminateInstances":
        yield action, f"{arn}instance/{seen.body['InstanceId.1']}", mine
    elif seen.action in DISCARDS:
        kind, parameter = DISCARDS[seen.action]
        yield action, f"{arn}{kind}/{seen.body[parameter]}", mine
    elif service == "sqs":
        yield action, f"{arn}{QUEUE}", here
    elif service == "ssm":
        yield action, f"arn:aws:ssm:{seen.region}::parameter{seen.body['Name']}", here
    else:
        assert seen.action.startswith(("Describe", "GetProducts")), seen
        yield action, "*", here


def _launch(seen: Seen, here: dict[str, str], arn: str) -> Iterator[Need]:
    body = seen.body
    tagged: dict[str, dict[str, str]] = {}
    for key, kind in body.items():
        if key.endswith(".ResourceType"):
            prefix = key.removesuffix("ResourceType") + "Tag."
            pairs = {k: v for k, v in body.items() if k.startswith(prefix) and k.endswith(".Key")}
            tagged[kind] = {
                f"aws:RequestTag/{name}": body[k.removesuffix("Key") + "Value"]
                for k, name in pairs.items()
            }
    market = body.get("InstanceMarketOptions.MarketType", "on-demand")
    about = here | {"ec2:InstanceType": body["InstanceType"], "ec2:MarketType": market}
    for kind, tags in tagged.items():
        yield "ec2:RunInstances", f"{arn}{kind}/*", about | tags
        yield "ec2:CreateTags", f"{arn}{kind}/*", tags | {"ec2:CreateAction": "RunInstances"}
    for key, kind in PARTS.items():
        if key in body:
            owner = "" if kind == "image" else ACCOUNT
            yield "ec2:RunInstances", f"arn:aws:ec2:{seen.region}:{owner}:{kind}/{body[key]}", here
    for key, value in body.items():
        if key.startswith("NetworkInterface.") and key.endswith(".SubnetId"):
            yield "ec2:RunInstances", f"{arn}subnet/{value}", here
        if key.startswith("NetworkInterface.") and ".SecurityGroupId." in key:
            yield "ec2:RunInstances", f"{arn}security-group/{value}", here
    if role := body.get("IamInstanceProfile.Name"):
        passed = {"iam:PassedToService": "ec2.amazonaws.com"}
        yield "iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/{role}", passed


def _live_through_everything(rented: Rented) -> None:
    """Each verb of the port, and each way of buying a machine."""
    session = boto3.Session(profile_name=PROFILE)
    iam: Any = session.client("iam", "us-east-1")
    role = f"spotd-node-{rented.deployment}"
    iam.create_instance_profile(InstanceProfileName=role)
    queues: list[Any] = [session.client("sqs", region) for region in REGIONS]
    urls = [queue.create_queue(QueueName=QUEUE)["QueueUrl"] for queue in queues]
    queues[0].send_message(QueueUrl=urls[0], MessageBody="{}")
    ec2: Any = session.client("ec2", "us-east-1")
    tags = [{"Key": "spotd-deployment", "Value": rented.deployment}]
    subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
    card = ec2.create_network_interface(SubnetId=subnet)["NetworkInterface"]["NetworkInterfaceId"]
    address = ec2.allocate_address(Domain="vpc")["AllocationId"]
    ec2.create_tags(Resources=[card, address], Tags=tags)
    rented.forget()
    cloud = rented.cloud(node_role=role, queue=QUEUE)
    cloud.offers(OfferRequest())
    held = {"reservation": "cr-1"}
    cloud.launch(rented.request("spot"))
    cloud.launch(rented.request("plain", capacity_type=CapacityType.ON_DEMAND))
    cloud.launch(rented.request("held", capacity_type=CapacityType.RESERVED, **held))
    cloud.launch(rented.request("block", capacity_type=CapacityType.BLOCK, **held))
    cloud.launch(rented.request("gang", interconnect="efa", gang="g1"))
    machines = cloud.list()
    cloud.renew(machines[0].instance_id, 1_900_000_000 * 1_000_000)
    cloud.notices()
    cloud.notices()
    rented.aws.ec2.faults.arm(Fault("leftovers", ("TerminateInstances",)))
    for one in machines:
        cloud.terminate(one.instance_id)
    for left in cloud.leftovers():
        cloud.discard(left.leftover_id)
    assert cloud.leftovers() == []
    for client in (*queues, iam, ec2):
        client.close()


@pytest.fixture
def asked(rented: Rented) -> list[Need]:
    _live_through_everything(rented)
    return [need for seen in rented.aws.ec2.seen for need in needs(seen, rented.deployment)]


def test_who_may_make_the_calls_of_the_adapter(rented: Rented, asked: list[Need]) -> None:
    facts = PolicyFacts(
        deployment=rented.deployment,
        regions=REGIONS,
        own_store="s3://ours/spotd",
        checkpoint_store="s3://runs/team",
        instance_types=("p5.*", "g6.*"),
        account={"queue": QUEUE},
    )
    documents = policies(facts)
    allowed = {
        role: {
            need[0]
            for need in asked
            if aws_allows(documents[facts.name(role)], need[0], need[1], **need[2])
        }
        for role in ("control", "reaper", "node")
    }
    refused = [
        need
        for need in asked
        if not aws_allows(documents[facts.name("control")], need[0], need[1], **need[2])
    ]
    assert refused == []
    assert allowed["reaper"] == {"ec2:DescribeInstances", "ec2:TerminateInstances"}
    assert allowed["node"] == set()
    # And nothing but what it calls: the rest is asked for by EC2 itself, by `spotctl doctor`, and
    # by what reads and writes checkpoints.
    control = documents[facts.name("control")]
    granted = {action for statement in control["Statement"] for action in statement["Action"]}
    objects = {action for action in granted if action.startswith("s3:")}
    others = {"iam:CreateServiceLinkedRole", "servicequotas:GetServiceQuota"}
    assert granted - objects - others == allowed["control"]


def test_another_deployment_may_touch_nothing_of_it(rented: Rented, asked: list[Need]) -> None:
    stranger = policies(PolicyFacts("other", REGIONS, "s3://a", "s3://b"))["spotd-control-other"]
    changing = [need for need in asked if need[2].keys() & _TOUCHES]
    assert {need[0] for need in changing} == {
        *("ec2:RunInstances", "ec2:CreateTags", "ec2:TerminateInstances"),
        *("ec2:DeleteVolume", "ec2:DeleteNetworkInterface", "ec2:ReleaseAddress"),
    }
    parts = ("volume", "network-interface", "spot-instances-request")
    for action, resource, context in changing:
        if action == "ec2:RunInstances" and any(f":{kind}/" in resource for kind in parts):
            continue  # what a machine is made of; the machine itself is refused
        assert not aws_allows(stranger, action, resource, **context), (action, resource)


_TOUCHES = {"aws:ResourceTag/spotd-deployment", "aws:RequestTag/spotd-deployment"}
