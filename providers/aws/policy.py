"""IAM policies for AWS: of the control box, of spot-reaper, and of the machines.

Source of condition keys and of the resources of each action: AWS's Service Authorization Reference
(EC2, S3, IAM).
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
    PolicyFacts,
    StorePrefix,
)

_READ = (
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
_READ_PRICES = ("pricing:GetProducts",)
_PUBLIC_PARAMETERS = "arn:aws:ssm:*::parameter/aws/service/*"
_RECEIVE = ("sqs:GetQueueUrl", "sqs:ReceiveMessage", "sqs:DeleteMessage")
# Leftovers of machines and their deletion. EC2 refuses to delete attached resources, and no policy
# here allows to detach them.
_READ_LEFTOVERS = (
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
# Actions that a dry run can test without naming a resource.
DRY_RUN_ACTIONS = tuple(
    action.removeprefix("ec2:")
    for action in (*_READ, *_READ_LEFTOVERS)
    if action.startswith("ec2:")
)
# Reading AMIs is part of _READ. Their ARNs contain no account.
_IMAGES, _SNAPSHOTS = "arn:aws:ec2:*::image/*", "arn:aws:ec2:*::snapshot/*"
_INSTANCES = "arn:aws:ec2:*:*:instance/*"
_VOLUMES, _INTERFACES = "arn:aws:ec2:*:*:volume/*", "arn:aws:ec2:*:*:network-interface/*"
_ADDRESSES = "arn:aws:ec2:*:*:elastic-ip/*"
_GROUPS = "arn:aws:ec2:*:*:placement-group/*"
_LEFTOVER_RESOURCES = (_VOLUMES, _INTERFACES, _ADDRESSES, _GROUPS, _IMAGES, _SNAPSHOTS)
_SPOT_REQUESTS = "arn:aws:ec2:*:*:spot-instances-request/*"
# EC2 creates it once per account, with the permissions of the caller that first asks for spot.
_SPOT_ROLE = "arn:aws:iam::*:role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot"
# FIS creates it with the first experiment.
_FIS_ROLE = "arn:aws:iam::*:role/aws-service-role/fis.amazonaws.com/AWSServiceRoleForFIS"
_TEMPLATES, _EXPERIMENTS = "arn:aws:fis:*:*:experiment-template/*", "arn:aws:fis:*:*:experiment/*"
_INTERRUPTIONS = "arn:aws:fis:*:*:action/aws:ec2:send-spot-instance-interruptions"
# Resources of RunInstances other than the instance.
_LAUNCH_RESOURCES = (
    _VOLUMES,
    _INTERFACES,
    _SPOT_REQUESTS,
    _IMAGES,
    "arn:aws:ec2:*:*:subnet/*",
    "arn:aws:ec2:*:*:security-group/*",
    "arn:aws:ec2:*:*:capacity-reservation/*",
    _GROUPS,
)
# Denied to machines, whatever other policy somebody attaches to their role. User data is denied
# because it contains the host key by which a new machine is recognised.
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
    """Return name -> policy document.

    The roles of machines and of FIS have the names of their policies; the role of the control box
    has REHEARSE as well, because a single document could be too long.
    """
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
    create = _in_regions(facts, StringEquals=tagged | market)
    create["StringLike"] = {"ec2:InstanceType": [*facts.instance_types]}
    here, own = _in_regions(facts), _own_resources(facts)
    made = _in_regions(facts, StringEquals=tagged)
    return [
        _allow("Look", (*_READ, *_READ_LEFTOVERS), ["*"], here),
        _allow("LookAtPrices", _READ_PRICES, ["*"], {}),
        _allow("ReadPublicParameters", ["ssm:GetParameter"], [_PUBLIC_PARAMETERS], here),
        *_receive_warnings(facts),
        *_assume_lease_roles(facts),
        _allow("CreateTagged", ["ec2:RunInstances"], [_INSTANCES], create),
        _allow("CreateFromParts", ["ec2:RunInstances"], _LAUNCH_RESOURCES, here),
        _allow(
            "TagWhatIsCreated",
            ["ec2:CreateTags"],
            [_INSTANCES, _VOLUMES, _INTERFACES, _SPOT_REQUESTS, _IMAGES, _SNAPSHOTS],
            {"StringEquals": {"ec2:CreateAction": ["RunInstances", "CreateImage"], **tagged}},
        ),
        _allow("GroupGangs", ["ec2:CreatePlacementGroup"], [_GROUPS], made),
        _allow(
            "TagGroups",
            ["ec2:CreateTags"],
            [_GROUPS],
            {"StringEquals": {"ec2:CreateAction": "CreatePlacementGroup"} | tagged},
        ),
        _extend_expiry(facts),
        _terminate_own(facts),
        _allow("ReadOwn", ["ec2:GetConsoleOutput", "ec2:CreateImage"], [_INSTANCES], own),
        _allow("DiscardOwn", _DISCARD, _LEFTOVER_RESOURCES, own),
        _allow("MakeTaggedImages", ["ec2:CreateImage"], [_IMAGES, _SNAPSHOTS], made),
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
        *_objects(facts.control_prefixes("s3")),
    ]


def _rehearse(facts: PolicyFacts) -> list[Document]:
    """For `spotctl doctor --live --gpu`: experiments of one kind, on machines of this deployment
    only."""
    role = f"arn:aws:iam::*:role/{facts.name(INTERRUPT)}"
    tagged = {f"aws:RequestTag/{DEPLOYMENT_TAG}": facts.deployment}
    made = _in_regions(facts, StringEquals=tagged)
    return [
        _allow("UseInterruptions", ["fis:CreateExperimentTemplate"], [_INTERRUPTIONS], {}),
        _allow("MakeTemplates", ["fis:CreateExperimentTemplate"], [_TEMPLATES], made),
        _allow("BeginExperiments", ["fis:StartExperiment"], [_EXPERIMENTS], made),
        _allow("TagExperiments", ["fis:TagResource"], [_TEMPLATES, _EXPERIMENTS], made),
        _allow(
            "UseOwnTemplates",
            ["fis:StartExperiment", "fis:DeleteExperimentTemplate"],
            [_TEMPLATES],
            _own_resources(facts),
        ),
        _allow("LookAtExperiments", ["fis:GetExperiment"], [_EXPERIMENTS], _own_resources(facts)),
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
    """The role of an experiment."""
    return [
        _allow("Look", ["ec2:DescribeInstances"], ["*"], _in_regions(facts)),
        _allow(
            "TakeBackOwn",
            ["ec2:SendSpotInstanceInterruptions"],
            [_INSTANCES],
            _own_resources(facts),
        ),
    ]


def _receive_warnings(facts: PolicyFacts) -> list[Document]:
    """Access to the one queue that the configuration names."""
    queue = facts.account.get("queue", "")
    return (
        [_allow("Hear", _RECEIVE, [f"arn:aws:sqs:*:*:{queue}"], _in_regions(facts))]
        if queue
        else []
    )


def _assume_lease_roles(facts: PolicyFacts) -> list[Document]:
    """Access to the roles that the configuration names under [stores.NAME.lend]."""
    roles = facts.account.get("lend", "").split()
    return [_allow("Lend", ["sts:AssumeRole"], roles, {})] if roles else []


def _reaper(facts: PolicyFacts) -> list[Document]:
    return [
        _allow("Look", ["ec2:DescribeInstances"], ["*"], _in_regions(facts)),
        _terminate_own(facts),
    ]


def _node(facts: PolicyFacts) -> list[Document]:
    prefixes = facts.node_prefixes("s3")
    own_objects = [_arn(prefix) + "*" for prefix in prefixes] + [
        _bucket(prefix) for prefix in prefixes
    ]
    elsewhere: Document = {"Sid": "NoOtherObject", "Effect": "Deny", "Action": ["s3:*"]}
    elsewhere |= {"NotResource": own_objects} if own_objects else {"Resource": ["*"]}
    return [
        *_objects(prefixes),
        *_issue_identity_tokens(facts),
        elsewhere,
        {
            "Sid": "NoControl",
            "Effect": "Deny",
            "Action": [*_NEVER_ON_NODES],
            "Resource": ["*"],
        },
    ]


def _issue_identity_tokens(facts: PolicyFacts) -> list[Document]:
    """Tokens that prove the machine's role, only for audiences that the configuration names under
    [stores.NAME.federate]. Entra accepts no other proof of an AWS machine."""
    audiences = facts.account.get("prove", "").split()
    condition = {
        "ForAllValues:StringEquals": {"sts:IdentityTokenAudience": audiences},
        "Null": {
            "sts:IdentityTokenAudience": "false"
        },  # the line above is true for no audience at all
        "NumericLessThanEquals": {"sts:DurationSeconds": "300"},
    }
    return [_allow("Prove", ["sts:GetWebIdentityToken"], ["*"], condition)] if audiences else []


def prefix_policy(prefix: StorePrefix) -> Document:
    """Return a session policy that allows only the objects below one prefix."""
    return _document(_objects([prefix]))


def _terminate_own(facts: PolicyFacts) -> Document:
    return _allow("EndOwn", ["ec2:TerminateInstances"], [_INSTANCES], _own_resources(facts))


def _extend_expiry(facts: PolicyFacts) -> Document:
    """Allow only the expiry tag, on machines that already are the deployment's.

    With another key, any machine could be tagged as the deployment's and then terminated.
    """
    condition = _own_resources(facts) | {
        "ForAllValues:StringEquals": {"aws:TagKeys": [EXPIRES_TAG]},
        "Null": {"aws:TagKeys": "false"},  # the line above is true for no keys at all
    }
    return _allow("MoveOnExpiryOfOwn", ["ec2:CreateTags"], [_INSTANCES], condition)


def _own_resources(facts: PolicyFacts) -> dict[str, Any]:
    """Limit to resources with the deployment's tag, in its regions."""
    return _in_regions(facts, StringEquals={f"aws:ResourceTag/{DEPLOYMENT_TAG}": facts.deployment})


def _objects(prefixes: Sequence[StorePrefix]) -> list[Document]:
    """Allow the objects below some prefixes, and listing them."""
    statements = []
    for number, prefix in enumerate(prefixes):
        listed = {"StringLike": {"s3:prefix": [f"{prefix.prefix}*"]}}
        statements.append(_allow(f"Objects{number}", _OBJECTS, [_arn(prefix) + "*"], {}))
        statements.append(_allow(f"List{number}", ["s3:ListBucket"], [_bucket(prefix)], listed))
    return statements


def _bucket(prefix: StorePrefix) -> str:
    return f"arn:aws:s3:::{prefix.bucket}"


def _arn(prefix: StorePrefix) -> str:
    return f"{_bucket(prefix)}/{prefix.prefix}"


def _in_regions(facts: PolicyFacts, **more: dict[str, str]) -> dict[str, Any]:
    """Limit to the regions of the deployment."""
    equals: dict[str, Any] = {"aws:RequestedRegion": [*facts.regions]}
    return {**more, "StringEquals": equals | more.get("StringEquals", {})}


def _allow(
    sid: str, actions: Sequence[str], resources: Sequence[str], condition: dict[str, Any]
) -> Document:
    statement: Document = {
        "Sid": sid,
        "Effect": "Allow",
        "Action": [*actions],
        "Resource": [*resources],
    }
    return statement | ({"Condition": condition} if condition else {})


def _document(statements: list[Document]) -> Document:
    return {"Version": "2012-10-17", "Statement": statements}
