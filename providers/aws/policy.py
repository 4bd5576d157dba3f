"""IAM policies for AWS: of the control box, of the reaper, and of the machines.

Condition keys and which actions take which resources: AWS's Service Authorization Reference (EC2,
S3, IAM).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from providers.base import EXPIRES_TAG
from providers.iam.policy import (
    CONTROL,
    DEPLOYMENT_TAG,
    INTERRUPT,
    NODE,
    REAPER,
    REHEARSE,
    Document,
    Place,
    PolicyFacts,
)

_LOOK = (
    "ec2:DescribeInstances",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeInstanceTypeOfferings",
    "ec2:DescribeSpotPriceHistory",
    "ec2:DescribeSpotInstanceRequests",
    "ec2:DescribeImages",
    "ec2:DescribeSubnets",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeAvailabilityZones",
    "ec2:DescribeCapacityReservations",
    "servicequotas:GetServiceQuota",
    "ec2:GetSpotPlacementScores",
)
# The Price List API is in few regions and answers for all: see PRICES_REGION of market.py.
_LOOK_AT_PRICES = ("pricing:GetProducts",)
_PUBLIC_PARAMETERS = "arn:aws:ssm:*::parameter/aws/service/*"
_HEAR = ("sqs:GetQueueUrl", "sqs:ReceiveMessage", "sqs:DeleteMessage")
# What a machine may leave behind, and what deletes it. EC2 itself refuses to delete what hangs on a
# machine, and nobody here may take it off: neither DetachVolume nor its like is anywhere.
_LOOK_FOR_LEFTOVERS = (
    "ec2:DescribeVolumes",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeAddresses",
    "ec2:DescribePlacementGroups",
    "ec2:DescribeSnapshots",
)
_DISCARD = (
    "ec2:DeleteVolume",
    "ec2:DeleteNetworkInterface",
    "ec2:ReleaseAddress",
    "ec2:DeletePlacementGroup",
    "ec2:DeregisterImage",
    "ec2:DeleteSnapshot",
)
# What a dry run shows without a resource to name, as EC2 calls it.
LOOKED_AT = tuple(
    action.removeprefix("ec2:")
    for action in (*_LOOK, *_LOOK_FOR_LEFTOVERS)
    if action.startswith("ec2:")
)
# AMIs are read among _LOOK; of no owner, as their names have it.
_IMAGES, _SNAPSHOTS = "arn:aws:ec2:*::image/*", "arn:aws:ec2:*::snapshot/*"
_INSTANCES = "arn:aws:ec2:*:*:instance/*"
_DISKS, _CARDS = "arn:aws:ec2:*:*:volume/*", "arn:aws:ec2:*:*:network-interface/*"
_ADDRESSES = "arn:aws:ec2:*:*:elastic-ip/*"
_GROUPS = "arn:aws:ec2:*:*:placement-group/*"
_DISCARDED = (_DISKS, _CARDS, _ADDRESSES, _GROUPS, _IMAGES, _SNAPSHOTS)
_REQUESTS = "arn:aws:ec2:*:*:spot-instances-request/*"
# Made once in an account, by EC2, with the rights of whoever asks for its first spot machine.
_SPOT_ROLE = "arn:aws:iam::*:role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot"
# The same of the first experiment of FIS.
_FIS_ROLE = "arn:aws:iam::*:role/aws-service-role/fis.amazonaws.com/AWSServiceRoleForFIS"
_TEMPLATES, _EXPERIMENTS = "arn:aws:fis:*:*:experiment-template/*", "arn:aws:fis:*:*:experiment/*"
_INTERRUPTIONS = "arn:aws:fis:*:*:action/aws:ec2:send-spot-instance-interruptions"
# What a machine is made of beside itself.
_PARTS = (
    _DISKS,
    _CARDS,
    _REQUESTS,
    _IMAGES,
    "arn:aws:ec2:*:*:subnet/*",
    "arn:aws:ec2:*:*:security-group/*",
    "arn:aws:ec2:*:*:capacity-reservation/*",
    _GROUPS,
)
# Never for a machine, whatever other policy somebody attaches to its role. User data has the host
# key that a new machine is recognised by.
_NEVER_ON_NODES = (
    "ec2:RunInstances",
    "ec2:CreateFleet",
    "ec2:RequestSpotInstances",
    "ec2:RequestSpotFleet",
    "ec2:StartInstances",
    "ec2:TerminateInstances",
    "ec2:CreateTags",
    "ec2:DeleteTags",
    "ec2:DescribeInstanceAttribute",
    "ec2:ModifyInstanceAttribute",
    "iam:*",
    "sts:AssumeRole*",
    "organizations:*",
    "ssm:*",
    "secretsmanager:*",
)
_OBJECTS = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload")


def policies(facts: PolicyFacts) -> dict[str, Document]:
    """Name -> policy document. The roles of the machines and of FIS are called as their policies;
    that of the control box has REHEARSE as well, because one document could be too long."""
    return {
        facts.name(CONTROL): _document(_control(facts)),
        facts.name(REAPER): _document(_reaper(facts)),
        facts.name(NODE): _document(_node(facts)),
        facts.name(REHEARSE): _document(_rehearse(facts)),
        facts.name(INTERRUPT): _document(_interrupt(facts)),
    }


def _control(facts: PolicyFacts) -> list[Document]:
    tagged = {f"aws:RequestTag/{DEPLOYMENT_TAG}": facts.deployment}
    market = {"ec2:MarketType": "spot"} if facts.spot_only else {}
    create = _here(facts, StringEquals=tagged | market)
    create["StringLike"] = {"ec2:InstanceType": [*facts.instance_types]}
    return [
        _allow("Look", (*_LOOK, *_LOOK_FOR_LEFTOVERS), ["*"], _here(facts)),
        _allow("LookAtPrices", _LOOK_AT_PRICES, ["*"], {}),
        _allow("ReadPublicParameters", ["ssm:GetParameter"], [_PUBLIC_PARAMETERS], _here(facts)),
        *_hear(facts),
        *_lend(facts),
        _allow("CreateTagged", ["ec2:RunInstances"], [_INSTANCES], create),
        _allow("CreateFromParts", ["ec2:RunInstances"], _PARTS, _here(facts)),
        _allow(
            "TagWhatIsCreated",
            ["ec2:CreateTags"],
            [_INSTANCES, _DISKS, _CARDS, _REQUESTS, _IMAGES, _SNAPSHOTS],
            {"StringEquals": {"ec2:CreateAction": ["RunInstances", "CreateImage"], **tagged}},
        ),
        _allow(
            "GroupGangs", ["ec2:CreatePlacementGroup"], [_GROUPS], _here(facts, StringEquals=tagged)
        ),
        _allow(
            "TagGroups",
            ["ec2:CreateTags"],
            [_GROUPS],
            {"StringEquals": {"ec2:CreateAction": "CreatePlacementGroup"} | tagged},
        ),
        _move_on_expiry(facts),
        _end_own(facts),
        _allow("ReadOwn", ["ec2:GetConsoleOutput", "ec2:CreateImage"], [_INSTANCES], _own(facts)),
        _allow("DiscardOwn", _DISCARD, _DISCARDED, _own(facts)),
        _allow(
            "MakeTaggedImages",
            ["ec2:CreateImage"],
            [_IMAGES, _SNAPSHOTS],
            _here(facts, StringEquals=tagged),
        ),
        _allow(
            "HandOutTheRoleOfMachines",
            ["iam:PassRole"],
            [f"arn:aws:iam::*:role/{facts.name(NODE)}"],
            {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}},
        ),
        _allow(
            "MakeTheRoleOfSpot",
            ["iam:CreateServiceLinkedRole"],
            [_SPOT_ROLE],
            {"StringEquals": {"iam:AWSServiceName": "spot.amazonaws.com"}},
        ),
        *_objects(facts.own_places("s3")),
    ]


def _rehearse(facts: PolicyFacts) -> list[Document]:
    """For `spotctl doctor --live --gpu`: experiments of one kind, which end no machine but ours."""
    role = f"arn:aws:iam::*:role/{facts.name(INTERRUPT)}"
    tagged = {f"aws:RequestTag/{DEPLOYMENT_TAG}": facts.deployment}
    made = _here(facts, StringEquals=tagged)
    return [
        _allow("UseInterruptions", ["fis:CreateExperimentTemplate"], [_INTERRUPTIONS], {}),
        _allow("MakeTemplates", ["fis:CreateExperimentTemplate"], [_TEMPLATES], made),
        _allow("BeginExperiments", ["fis:StartExperiment"], [_EXPERIMENTS], made),
        _allow("TagExperiments", ["fis:TagResource"], [_TEMPLATES, _EXPERIMENTS], made),
        _allow(
            "UseOwnTemplates",
            ["fis:StartExperiment", "fis:DeleteExperimentTemplate"],
            [_TEMPLATES],
            _own(facts),
        ),
        _allow("LookAtExperiments", ["fis:GetExperiment"], [_EXPERIMENTS], _own(facts)),
        _allow(
            "HandOutTheRoleOfExperiments",
            ["iam:PassRole"],
            [role],
            {"StringEquals": {"iam:PassedToService": "fis.amazonaws.com"}},
        ),
        _allow(
            "MakeTheRoleOfFis",
            ["iam:CreateServiceLinkedRole"],
            [_FIS_ROLE],
            {"StringEquals": {"iam:AWSServiceName": "fis.amazonaws.com"}},
        ),
    ]


def _interrupt(facts: PolicyFacts) -> list[Document]:
    """Of an experiment."""
    return [
        _allow("Look", ["ec2:DescribeInstances"], ["*"], _here(facts)),
        _allow("TakeBackOwn", ["ec2:SendSpotInstanceInterruptions"], [_INSTANCES], _own(facts)),
    ]


def _hear(facts: PolicyFacts) -> list[Document]:
    """Of the one queue that the configuration names."""
    queue = facts.account.get("queue", "")
    return [_allow("Hear", _HEAR, [f"arn:aws:sqs:*:*:{queue}"], _here(facts))] if queue else []


def _lend(facts: PolicyFacts) -> list[Document]:
    """The roles that the configuration names under [stores.NAME.lend]."""
    roles = facts.account.get("lend", "").split()
    return [_allow("Lend", ["sts:AssumeRole"], roles, {})] if roles else []


def _reaper(facts: PolicyFacts) -> list[Document]:
    return [
        _allow("Look", ["ec2:DescribeInstances"], ["*"], _here(facts)),
        _end_own(facts),
    ]


def _node(facts: PolicyFacts) -> list[Document]:
    places = facts.node_places("s3")
    mine = [_arn(place) + "*" for place in places] + [_bucket(place) for place in places]
    elsewhere: Document = {"Sid": "NoOtherObject", "Effect": "Deny", "Action": ["s3:*"]}
    elsewhere |= {"NotResource": mine} if mine else {"Resource": ["*"]}
    return [
        *_objects(places),
        *_prove(facts),
        elsewhere,
        {
            "Sid": "NoControl",
            "Effect": "Deny",
            "Action": [*_NEVER_ON_NODES],
            "Resource": ["*"],
        },
    ]


def _prove(facts: PolicyFacts) -> list[Document]:
    """Tokens that say which role a machine has, for those alone that the configuration names under
    [stores.NAME.federate]: Entra takes no other proof of a machine of AWS."""
    audiences = facts.account.get("prove", "").split()
    condition = {
        "ForAllValues:StringEquals": {"sts:IdentityTokenAudience": audiences},
        "Null": {"sts:IdentityTokenAudience": "false"},  # of none at all, the line above is true
        "NumericLessThanEquals": {"sts:DurationSeconds": "300"},
    }
    return [_allow("Prove", ["sts:GetWebIdentityToken"], ["*"], condition)] if audiences else []


def prefix_policy(place: Place) -> Document:
    """Of a session that reaches nothing but the objects below one prefix."""
    return _document(_objects([place]))


def _end_own(facts: PolicyFacts) -> Document:
    return _allow("EndOwn", ["ec2:TerminateInstances"], [_INSTANCES], _own(facts))


def _move_on_expiry(facts: PolicyFacts) -> Document:
    """That tag alone, of machines that are ours already: with any other key, a stranger's machine
    could be made ours, and ended then."""
    condition = _own(facts) | {
        "ForAllValues:StringEquals": {"aws:TagKeys": [EXPIRES_TAG]},
        "Null": {"aws:TagKeys": "false"},  # of no keys at all, the line above is true
    }
    return _allow("MoveOnExpiryOfOwn", ["ec2:CreateTags"], [_INSTANCES], condition)


def _own(facts: PolicyFacts) -> dict[str, Any]:
    """What has the deployment's tag, in its regions."""
    return _here(facts, StringEquals={f"aws:ResourceTag/{DEPLOYMENT_TAG}": facts.deployment})


def _objects(places: Sequence[Place]) -> list[Document]:
    """Objects below some prefixes, and their listing."""
    found = []
    for number, place in enumerate(places):
        listed = {"StringLike": {"s3:prefix": [f"{place.prefix}*"]}}
        found.append(_allow(f"Objects{number}", _OBJECTS, [_arn(place) + "*"], {}))
        found.append(_allow(f"List{number}", ["s3:ListBucket"], [_bucket(place)], listed))
    return found


def _bucket(place: Place) -> str:
    return f"arn:aws:s3:::{place.bucket}"


def _arn(place: Place) -> str:
    return f"{_bucket(place)}/{place.prefix}"


def _here(facts: PolicyFacts, **more: dict[str, str]) -> dict[str, Any]:
    """In the regions of the deployment."""
    equals: dict[str, Any] = {"aws:RequestedRegion": [*facts.regions]}
    return {**more, "StringEquals": equals | more.get("StringEquals", {})}


def _allow(
    sid: str, actions: Sequence[str], resources: Sequence[str], condition: dict[str, Any]
) -> Document:
    found: Document = {
        "Sid": sid,
        "Effect": "Allow",
        "Action": [*actions],
        "Resource": [*resources],
    }
    return found | ({"Condition": condition} if condition else {})


def _document(statements: list[Document]) -> Document:
    return {"Version": "2012-10-17", "Statement": statements}
