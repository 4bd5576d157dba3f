"""The control box's policy allows every call of the adapter, as the stand-in received it; the
reaper may make two of them, and a machine none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import boto3
import pytest

from providers import readiness
from providers.aws.policy import policies
from providers.base import CapacityType, OfferRequest
from providers.iam.policy import PolicyFacts
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
    "DeletePlacementGroup": ("placement-group", "GroupName"),
}
REMOVALS = {"DeregisterImage": ("image", "ImageId"), "DeleteSnapshot": ("snapshot", "SnapshotId")}

Need = tuple[str, str, dict[str, str]]  # action, resource, condition keys


def needs(seen: Seen, deployment: str) -> Iterator[Need]:
    """Return what AWS requires of the caller's policies for one call, by its Service Authorization
    Reference."""
    here = {"aws:RequestedRegion": seen.region}
    mine = here | {"aws:ResourceTag/spotd-deployment": deployment}
    service = seen.service
    if service == "sts":
        return  # whoever asks who it is
    action = f"{service}:{seen.action}"
    action = RIGHTS.get(action, action)
    arn = f"arn:aws:{service}:{seen.region}:{ACCOUNT}:"
    if seen.action == "RunInstances":
        yield from _launch(seen, here, arn)
    elif seen.action == "CreateTags":
        keys = {v for k, v in seen.body.items() if k.startswith("Tag.") and k.endswith(".Key")}
        context = mine | {"aws:TagKeys": ",".join(sorted(keys))}
        yield action, f"{arn}instance/{seen.body['ResourceId.1']}", context
    elif seen.action in ("TerminateInstances", "GetConsoleOutput"):
        resource_id = seen.body.get("InstanceId.1") or seen.body["InstanceId"]
        yield action, f"{arn}instance/{resource_id}", mine
    elif seen.action == "CreatePlacementGroup":
        resource = f"{arn}placement-group/{seen.body['GroupName']}"
        keys = {v: k for k, v in seen.body.items() if k.endswith(".Key")}
        tags = {
            f"aws:RequestTag/{name}": seen.body[key.removesuffix("Key") + "Value"]
            for name, key in keys.items()
        }
        yield action, resource, here | tags
        yield "ec2:CreateTags", resource, tags | {"ec2:CreateAction": "CreatePlacementGroup"}
    elif seen.action == "CreateImage":
        yield from _image(seen, here, arn, mine)
    elif seen.action in REMOVALS:
        kind, parameter = REMOVALS[seen.action]
        yield action, f"arn:aws:ec2:{seen.region}::{kind}/{seen.body[parameter]}", mine
    elif seen.action in DISCARDS:
        kind, parameter = DISCARDS[seen.action]
        yield action, f"{arn}{kind}/{seen.body[parameter]}", mine
    elif service == "fis":
        yield from _experiment(seen, here, arn, mine)
    elif service == "sqs":
        yield action, f"{arn}{QUEUE}", here
    elif service == "ssm":
        yield action, f"arn:aws:ssm:{seen.region}::parameter{seen.body['Name']}", here
    else:
        looks = ("Describe", "GetProducts", "GetServiceQuota", "GetSpotPlacement")
        assert seen.action.startswith(looks), seen
        yield action, "*", here


def _experiment(seen: Seen, here: dict[str, str], arn: str, mine: dict[str, str]) -> Iterator[Need]:
    """FIS checks an experiment and its template separately."""
    action = f"fis:{seen.action}"
    tags = {f"aws:RequestTag/{k}": v for k, v in seen.body.get("tags", {}).items()}
    if seen.action == "CreateExperimentTemplate":
        yield action, f"{arn}experiment-template/*", here | tags
        yield "fis:TagResource", f"{arn}experiment-template/*", here | tags
        for item in seen.body["actions"].values():
            yield action, f"arn:aws:fis:{seen.region}:{ACCOUNT}:action/{item['actionId']}", here
        passed = {"iam:PassedToService": "fis.amazonaws.com"}
        yield "iam:PassRole", seen.body["roleArn"], passed
    elif seen.action == "StartExperiment":
        yield action, f"{arn}experiment-template/{seen.body['experimentTemplateId']}", mine
        yield action, f"{arn}experiment/*", here | tags
        yield "fis:TagResource", f"{arn}experiment/*", here | tags
    elif seen.action == "DeleteExperimentTemplate":
        yield action, f"{arn}experiment-template/{seen.body['id']}", mine
    else:
        assert seen.action == "GetExperiment", seen
        yield action, f"{arn}experiment/{seen.body['id']}", mine


def _image(seen: Seen, here: dict[str, str], arn: str, mine: dict[str, str]) -> Iterator[Need]:
    yield "ec2:CreateImage", f"{arn}instance/{seen.body['InstanceId']}", mine
    for kind, tags in _tagged(seen.body).items():
        new = f"arn:aws:ec2:{seen.region}::{kind}/*"
        yield "ec2:CreateImage", new, here | tags
        yield "ec2:CreateTags", new, tags | {"ec2:CreateAction": "CreateImage"}


def _tagged(body: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return, for each kind of resource, the condition keys of the tags that it gets."""
    tagged: dict[str, dict[str, str]] = {}
    for key, kind in body.items():
        if key.endswith(".ResourceType"):
            prefix = key.removesuffix("ResourceType") + "Tag."
            pairs = {k: v for k, v in body.items() if k.startswith(prefix) and k.endswith(".Key")}
            tagged[kind] = {
                f"aws:RequestTag/{name}": body[k.removesuffix("Key") + "Value"]
                for k, name in pairs.items()
            }
    return tagged


def _launch(seen: Seen, here: dict[str, str], arn: str) -> Iterator[Need]:
    body = seen.body
    tagged = _tagged(body)
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
    """Use each verb of the port, and each capacity type."""
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
    cloud = rented.cloud(node_role=role, queue=QUEUE, reservations={"cr-1": 0})
    cloud.offers(OfferRequest())
    held = {"reservation": "cr-1"}
    cloud.launch(rented.request("spot"))
    cloud.launch(rented.request("plain", capacity_type=CapacityType.ON_DEMAND))
    cloud.launch(rented.request("held", capacity_type=CapacityType.RESERVED, **held))
    cloud.launch(rented.request("block", capacity_type=CapacityType.BLOCK, **held))
    cloud.launch(rented.request("gang", interconnect="efa", gang="spotd-g1"))
    machines = cloud.list()
    offers = cloud.offers(OfferRequest(instance_type="p5.48xlarge"))
    cloud.check_readiness([readiness.need_of(offer) for offer in offers])
    cloud.renew(machines[0].instance_id, 1_900_000_000 * 1_000_000)
    cloud.read_serial_console(machines[0].instance_id)
    cloud.make_image(machines[0].instance_id, "spotd-baked", {})
    [image] = cloud.images()
    cloud.remove_image(image.image_id)
    spot = next(machine for machine in machines if machine.capacity_type is CapacityType.SPOT)
    cloud.interrupt(spot.instance_id)
    cloud.notices()
    cloud.notices()
    rented.aws.ec2.faults.arm(Fault("leftovers", ("TerminateInstances",)))
    for machine in machines:
        cloud.terminate(machine.instance_id)
    for left in cloud.leftovers():
        cloud.discard(left.leftover_id)
    assert cloud.leftovers() == []
    for client in (*queues, iam, ec2):
        client.close()


@pytest.fixture
def asked(rented: Rented) -> list[Need]:
    _live_through_everything(rented)
    return [need for seen in rented.aws.ec2.seen for need in needs(seen, rented.deployment)]


def _check_experiments(document: Mapping[str, Any], deployment: str) -> None:
    """FIS preempts only machines of the deployment."""
    action, where = "ec2:SendSpotInstanceInterruptions", {"aws:RequestedRegion": "us-east-1"}
    machine, tag = (
        f"arn:aws:ec2:us-east-1:{ACCOUNT}:instance/i-1",
        "aws:ResourceTag/spotd-deployment",
    )
    assert aws_allows(document, action, machine, **where, **{tag: deployment})
    assert not aws_allows(document, action, machine, **where, **{tag: "another"})
    assert not aws_allows(document, "ec2:TerminateInstances", machine, **where, **{tag: deployment})


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
    control = documents[facts.name("control")]
    control["Statement"] += documents[facts.name("rehearse")]["Statement"]  # it has both
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
    _check_experiments(documents[facts.name("interrupt")], rented.deployment)
    assert allowed["reaper"] == {"ec2:DescribeInstances", "ec2:TerminateInstances"}
    assert allowed["node"] == set()
    # And nothing but what it calls: the rest is asked for by EC2 itself, and by what reads and
    # writes checkpoints.
    granted = {action for statement in control["Statement"] for action in statement["Action"]}
    objects = {action for action in granted if action.startswith("s3:")}
    others = {"iam:CreateServiceLinkedRole"}
    assert granted - objects - others == allowed["control"]


def test_another_deployment_may_touch_nothing_of_it(rented: Rented, asked: list[Need]) -> None:
    stranger = policies(PolicyFacts("other", REGIONS, "s3://a", "s3://b"))["spotd-control-other"]
    changing = [need for need in asked if need[2].keys() & _TOUCHES]
    assert {need[0] for need in changing} == {
        "ec2:RunInstances",
        "ec2:CreateTags",
        "ec2:TerminateInstances",
        "ec2:DeleteVolume",
        "ec2:DeleteNetworkInterface",
        "ec2:ReleaseAddress",
        "ec2:CreateImage",
        "ec2:DeregisterImage",
        "ec2:DeleteSnapshot",
        "ec2:GetConsoleOutput",
        "ec2:CreatePlacementGroup",
        "ec2:DeletePlacementGroup",
        "fis:CreateExperimentTemplate",
        "fis:StartExperiment",
        "fis:TagResource",
        "fis:GetExperiment",
        "fis:DeleteExperimentTemplate",
    }
    parts = ("volume", "network-interface", "spot-instances-request")
    for action, resource, context in changing:
        if action == "ec2:RunInstances" and any(f":{kind}/" in resource for kind in parts):
            continue  # what a machine is made of; the machine itself is refused
        assert not aws_allows(stranger, action, resource, **context), (action, resource)


_TOUCHES = {"aws:ResourceTag/spotd-deployment", "aws:RequestTag/spotd-deployment"}
