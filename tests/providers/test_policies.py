"""The permissions of each role, and what it must not have: tables of requests, judged by
evaluate.py."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from moto.iam.policy_validation import IAMPolicyDocumentValidator

from providers.aws.policy import policies as aws
from providers.azure.policy import policies as azure
from providers.gcp.policy import policies as gcp
from providers.iam.policy import PolicyFacts
from tests.providers.evaluate import aws_allows, azure_allows, gcp_allows

FACTS = PolicyFacts(
    deployment="d0",
    regions=("us-east-1", "eu-west-1"),
    own_store="s3://ours/spotd/packages",
    checkpoint_store="s3://runs/team",
    account={
        "queue": "spotd-warnings",
        "project": "lab",
        "subscription_id": "s0",
        "resource_group": "spotd",
    },
)
ROLES = ("control", "reaper", "node")

# --- AWS

HERE = {"aws__RequestedRegion": "us-east-1"}
MINE = {"aws__ResourceTag___spotd-deployment": "d0"}
TAGGED = {"aws__RequestTag___spotd-deployment": "d0"}
EXPIRY = {"aws__TagKeys": "spotd-expires"}
MACHINE = "arn:aws:ec2:us-east-1:123456789012:instance/i-0abc"
VOLUME = "arn:aws:ec2:us-east-1:123456789012:volume/*"
PLACEMENT = "arn:aws:ec2:us-east-1:123456789012:placement-group/spotd-g1"
REQUEST = "arn:aws:ec2:us-east-1:123456789012:spot-instances-request/*"
PARAMETER = "arn:aws:ssm:us-east-1::parameter/aws/service/deeplearning/ami/x"
QUEUE = "arn:aws:sqs:us-east-1:123456789012:spotd-warnings"
SPOT_ROLE = (
    "arn:aws:iam::123456789012:role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot"
)
LEFT = {
    kind: f"arn:aws:ec2:us-east-1:123456789012:{kind}/x-0abc"
    for kind in ("volume", "network-interface", "elastic-ip")
}
OTHERS = {"aws__ResourceTag___spotd-deployment": "d1"}
CREATE = HERE | TAGGED | {"ec2__InstanceType": "p5.48xlarge", "ec2__MarketType": "spot"}
LIST = {"s3__prefix": "team/jobs/j1/"}
OBJECT = "arn:aws:s3:::runs/team/jobs/j1/HEAD"


def case(action: str, resource: str, context: dict[str, str], *allowed: str) -> Any:
    shown = "+".join(allowed) or "nobody"
    odd = f"{resource[-18:]} {'&'.join(sorted(context.values()))}"
    return pytest.param(action, resource, context, allowed, id=f"{action} {odd} {shown}")


AWS = [
    case("ec2:DescribeInstances", "*", HERE, "control", "reaper"),
    case("ec2:DescribeInstances", "*", {"aws__RequestedRegion": "ap-south-1"}),
    case("ec2:DescribeSpotPriceHistory", "*", HERE, "control"),
    case("ec2:DescribeInstanceAttribute", MACHINE, HERE | MINE),
    case("ec2:RunInstances", MACHINE, CREATE, "control"),
    case("ec2:RunInstances", VOLUME, HERE, "control"),
    case("ec2:RunInstances", MACHINE, {k: v for k, v in CREATE.items() if k not in TAGGED}),
    case("ec2:RunInstances", MACHINE, CREATE | {"aws__RequestTag___spotd-deployment": "d1"}),
    case("ec2:RunInstances", MACHINE, CREATE | {"aws__RequestedRegion": "ap-south-1"}),
    case("ec2:CreateTags", MACHINE, {"ec2__CreateAction": "RunInstances"} | TAGGED, "control"),
    case("ec2:CreateTags", MACHINE, HERE | TAGGED),  # would make a stranger's machine ours
    case("ec2:CreateTags", MACHINE, HERE | MINE | EXPIRY, "control"),  # to move it on
    case("ec2:CreateTags", MACHINE, HERE | EXPIRY),
    case("ec2:CreateTags", MACHINE, HERE | MINE),
    case(
        "ec2:CreateTags", MACHINE, HERE | MINE | {"aws__TagKeys": "spotd-expires,spotd-deployment"}
    ),
    case("ec2:DeleteTags", MACHINE, HERE | MINE | EXPIRY),
    case("ec2:TerminateInstances", MACHINE, HERE | MINE, "control", "reaper"),
    case("ec2:TerminateInstances", MACHINE, HERE),
    case("ec2:TerminateInstances", MACHINE, HERE | {"aws__ResourceTag___spotd-deployment": "d1"}),
    case("ec2:StopInstances", MACHINE, HERE | MINE),
    case("ec2:ModifyInstanceAttribute", MACHINE, HERE | MINE),
    case("ec2:CreateFleet", "*", HERE | TAGGED),
    *[
        case(f"ec2:Describe{kind}", "*", HERE, "control")
        for kind in ("Volumes", "NetworkInterfaces", "Addresses")
    ],
    case("ec2:DescribeVolumes", "*", {"aws__RequestedRegion": "ap-south-1"}),
    *[
        row
        for verb, kind in (
            ("DeleteVolume", "volume"),
            ("DeleteNetworkInterface", "network-interface"),
            ("ReleaseAddress", "elastic-ip"),
        )
        for row in (
            case(f"ec2:{verb}", LEFT[kind], HERE | MINE, "control"),
            case(f"ec2:{verb}", LEFT[kind], HERE | OTHERS),
            case(f"ec2:{verb}", LEFT[kind], HERE),
        )
    ],
    case("ec2:DeleteVolume", LEFT["volume"], {"aws__RequestedRegion": "ap-south-1"} | MINE),
    *[  # what hangs on a machine is never taken from it
        case(f"ec2:{verb}", LEFT[kind], HERE | MINE)
        for verb, kind in (
            ("DetachVolume", "volume"),
            ("DetachNetworkInterface", "network-interface"),
            ("DisassociateAddress", "elastic-ip"),
            ("AllocateAddress", "elastic-ip"),
        )
    ],
    *[  # or nobody would know whose a leftover is
        case(
            "ec2:CreateTags", LEFT[kind], {"ec2__CreateAction": "RunInstances"} | TAGGED, "control"
        )
        for kind in ("volume", "network-interface")
    ],
    case("ec2:CreateTags", LEFT["volume"], HERE | TAGGED),
    case(
        "iam:PassRole",
        "arn:aws:iam::123456789012:role/spotd-node-d0",
        {"iam__PassedToService": "ec2.amazonaws.com"},
        "control",
    ),
    case(
        "iam:PassRole",
        "arn:aws:iam::123456789012:role/admin",
        {"iam__PassedToService": "ec2.amazonaws.com"},
    ),
    case(
        "iam:PassRole",
        "arn:aws:iam::123456789012:role/spotd-node-d0",
        {"iam__PassedToService": "lambda.amazonaws.com"},
    ),
    *[
        case(f"ec2:Describe{kind}", "*", HERE, "control")
        for kind in ("SpotInstanceRequests", "CapacityReservations")
    ],
    case("servicequotas:GetServiceQuota", "*", HERE, "control"),
    case("servicequotas:RequestServiceQuotaIncrease", "*", HERE),
    case("pricing:GetProducts", "*", {"aws__RequestedRegion": "us-east-1"}, "control"),
    case("pricing:GetProducts", "*", {"aws__RequestedRegion": "ap-south-1"}, "control"),
    case("ssm:GetParameter", PARAMETER, HERE, "control"),
    case("ssm:GetParameter", PARAMETER, {"aws__RequestedRegion": "ap-south-1"}),
    case("ssm:GetParameter", "arn:aws:ssm:us-east-1:123456789012:parameter/secret", HERE),
    case("ssm:PutParameter", PARAMETER, HERE),
    case("ec2:RunInstances", REQUEST, HERE, "control"),
    case("ec2:CreateTags", REQUEST, {"ec2__CreateAction": "RunInstances"} | TAGGED, "control"),
    case("ec2:CreateTags", REQUEST, HERE | TAGGED),
    case("ec2:RequestSpotInstances", REQUEST, CREATE),
    case("ec2:CancelSpotInstanceRequests", REQUEST, HERE | MINE),
    case("ec2:RunInstances", "arn:aws:ec2:us-east-1:123456789012:launch-template/lt-1", HERE),
    case(
        "ec2:RunInstances",
        "arn:aws:ec2:us-east-1:123456789012:capacity-reservation/cr-1",
        HERE,
        "control",
    ),
    case("ec2:CreatePlacementGroup", PLACEMENT, HERE | TAGGED, "control"),
    case("ec2:CreatePlacementGroup", PLACEMENT, HERE),
    case("ec2:DeletePlacementGroup", PLACEMENT, HERE | MINE, "control"),
    case("ec2:DeletePlacementGroup", PLACEMENT, HERE),
    case("ec2:CreateCapacityReservation", "*", HERE | TAGGED),
    case("ec2:PurchaseCapacityBlock", "*", HERE | TAGGED),
    *[
        case(f"sqs:{verb}", QUEUE, HERE, "control")
        for verb in ("GetQueueUrl", "ReceiveMessage", "DeleteMessage")
    ],
    case("sqs:ReceiveMessage", QUEUE + "-other", HERE),
    case("sqs:ReceiveMessage", QUEUE, {"aws__RequestedRegion": "ap-south-1"}),
    case("sqs:SendMessage", QUEUE, HERE),
    case("sqs:PurgeQueue", QUEUE, HERE),
    case("sqs:DeleteQueue", QUEUE, HERE),
    case(
        "iam:CreateServiceLinkedRole",
        SPOT_ROLE,
        {"iam__AWSServiceName": "spot.amazonaws.com"},
        "control",
    ),
    case(
        "iam:CreateServiceLinkedRole",
        SPOT_ROLE,
        {"iam__AWSServiceName": "elasticmapreduce.amazonaws.com"},
    ),
    case(
        "iam:CreateServiceLinkedRole",
        "arn:aws:iam::123456789012:role/admin",
        {"iam__AWSServiceName": "spot.amazonaws.com"},
    ),
    case("iam:CreateUser", "*", {}),
    case("sts:AssumeRole", "arn:aws:iam::123456789012:role/admin", {}),
    case("s3:GetObject", OBJECT, {}, "control", "node"),
    case("s3:PutObject", OBJECT, {}, "control", "node"),
    case("s3:DeleteObject", OBJECT, {}, "control", "node"),
    case("s3:ListBucket", "arn:aws:s3:::runs", LIST, "control", "node"),
    case("s3:ListBucket", "arn:aws:s3:::runs", {"s3__prefix": "team/"}, "control"),
    case("s3:ListBucket", "arn:aws:s3:::runs", {}),
    case("s3:GetObject", "arn:aws:s3:::runs/team/other", {}, "control"),
    case("s3:GetObject", "arn:aws:s3:::runs/teammate/jobs/j1/HEAD", {}),
    case("s3:GetObject", "arn:aws:s3:::ours/spotd/packages/packages/ab", {}, "control"),
    case("s3:GetObject", "arn:aws:s3:::stranger/team/jobs/j1/HEAD", {}),
    case("s3:DeleteBucket", "arn:aws:s3:::runs", {}),
    case("s3:PutBucketPolicy", "arn:aws:s3:::runs", {}),
]


@pytest.mark.parametrize(("action", "resource", "context", "allowed"), AWS)
def test_aws(action: str, resource: str, context: dict[str, str], allowed: tuple[str, ...]) -> None:
    documents = aws(FACTS)
    result = {
        role: aws_allows(documents[f"spotd-{role}-d0"], action, resource, **context)
        for role in ROLES
    }
    assert result == {role: role in allowed for role in ROLES}


def test_aws_takes_the_documents() -> None:
    """As far as moto checks them like AWS."""
    for document in aws(FACTS).values():
        IAMPolicyDocumentValidator(json.dumps(document)).validate()


def test_the_box_assumes_the_role_that_it_lends_and_no_other() -> None:
    role = "arn:aws:iam::123456789012:role/spotd-node-d0"
    lends = replace(FACTS, account={"lend": role})
    control = aws(lends)["spotd-control-d0"]
    assert aws_allows(control, "sts:AssumeRole", role)
    assert not aws_allows(control, "sts:AssumeRole", role + "x")
    assert not aws_allows(aws(FACTS)["spotd-control-d0"], "sts:AssumeRole", role)


def test_without_a_queue_nothing_of_sqs_is_allowed() -> None:
    output = json.dumps(aws(replace(FACTS, account={})))
    assert "sqs" not in output


def test_aws_takes_documents_of_that_size() -> None:
    """As policies of their own; white space does not count (IAM's quotas: 6144 characters)."""
    for document in aws(FACTS).values():
        assert len(json.dumps(document, separators=(",", ":"))) <= 6144


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        ({"ec2__MarketType": "spot"}, True),
        ({"ec2__MarketType": "on-demand"}, False),
        ({"ec2__InstanceType": "p5e.48xlarge"}, True),
        ({"ec2__InstanceType": "m7i.large"}, False),
    ],
)
def test_aws_may_be_narrowed_to_spot_and_to_some_types(
    given: dict[str, str], allowed: bool
) -> None:
    facts = replace(FACTS, instance_types=("p5*.48xlarge",), spot_only=True)
    document = aws(facts)["spotd-control-d0"]
    assert aws_allows(document, "ec2:RunInstances", MACHINE, **(CREATE | given)) is allowed


@pytest.mark.parametrize(
    ("action", "resource"),
    [
        *[(f"ec2:{verb}", "*") for verb in ("RunInstances", "TerminateInstances", "CreateFleet")],
        ("ec2:DescribeInstanceAttribute", MACHINE),
        ("iam:PassRole", "*"),
        ("sts:AssumeRoleWithWebIdentity", "*"),
        ("s3:GetObject", "arn:aws:s3:::ours/spotd/packages/packages/ab"),
        ("s3:GetObject", "arn:aws:s3:::runs/team/other"),
    ],
)
def test_a_machine_stays_small_whatever_else_its_role_is_given(action: str, resource: str) -> None:
    everything = {"Effect": "Allow", "Action": ["*"], "Resource": ["*"]}
    node = aws(FACTS)["spotd-node-d0"]
    generous = {**node, "Statement": [*node["Statement"], everything]}
    assert not aws_allows(generous, action, resource, **HERE)
    assert aws_allows(generous, "s3:GetObject", OBJECT)


def test_without_a_store_of_the_cloud_a_machine_has_nothing() -> None:
    facts = replace(FACTS, own_store="file:///a", checkpoint_store="file:///b")
    node = aws(facts)["spotd-node-d0"]
    assert {statement["Effect"] for statement in node["Statement"]} == {"Deny"}
    assert not aws_allows(node, "s3:GetObject", OBJECT)


def test_a_machine_of_aws_shows_who_it_is_to_nobody_but_whom_the_configuration_names() -> None:
    named = replace(FACTS, account={**FACTS.account, "prove": "api://one api://two"})
    node = aws(named)["spotd-node-d0"]
    IAMPolicyDocumentValidator(json.dumps(node)).validate()

    def may(document: Any, audience: str | None = "api://one", seconds: str = "300") -> bool:
        reported = {"sts__IdentityTokenAudience": audience} if audience else {}
        more = {**reported, "sts__DurationSeconds": seconds}
        return aws_allows(document, "sts:GetWebIdentityToken", "*", **HERE, **more)

    assert may(node)
    assert may(node, "api://two")
    assert not may(node, "api://three")
    assert not may(node, "api://one,api://three")
    assert not may(node, None)
    assert not may(node, seconds="3600")
    assert not aws_allows(node, "sts:AssumeRole", "*", **HERE)
    for role in ("control", "reaper"):
        assert not may(aws(named)[f"spotd-{role}-d0"])
    assert not may(aws(FACTS)["spotd-node-d0"])


# --- Google Cloud

GCP_FACTS = replace(FACTS, own_store="gs://ours/spotd", checkpoint_store="gs://runs/team")
VM = "projects/lab/zones/{}/instances/{}"
POLICY = "projects/lab/regions/us-east-1/resourcePolicies/{}"
BLOB = "projects/_/buckets/runs/objects/team/{}"


@pytest.mark.parametrize(
    ("permission", "name", "allowed"),
    [
        ("compute.instances.list", "projects/lab", ("control", "reaper")),
        ("compute.globalOperations.list", "projects/lab", ("control", "reaper")),
        ("compute.zoneOperations.list", "projects/lab", ("control", "reaper")),
        ("compute.zoneOperations.get", "projects/lab", ("control",)),
        ("compute.machineTypes.list", "projects/lab", ("control",)),
        ("compute.reservations.list", "projects/lab", ("control",)),
        ("compute.advice.capacityHistory", "projects/lab", ("control",)),
        ("compute.advice.capacity", "projects/lab", ("control",)),
        ("compute.resourcePolicies.list", "projects/lab", ("control",)),
        ("compute.resourcePolicies.delete", POLICY.format("spotd-j1"), ("control",)),
        ("compute.resourcePolicies.delete", POLICY.format("nightly-snapshots"), ()),
        ("compute.instances.get", VM.format("us-east-1-b", "spotd-j1"), ("control",)),
        ("compute.instances.get", VM.format("us-east-1-b", "web"), ()),
        ("compute.instances.setTags", VM.format("us-east-1-b", "spotd-j1"), ("control",)),
        (
            "compute.instances.getGuestAttributes",
            VM.format("us-east-1-b", "spotd-j1"),
            ("control",),
        ),
        ("compute.instances.getGuestAttributes", VM.format("us-east-1-b", "web"), ()),
        ("compute.instances.reset", VM.format("us-east-1-b", "spotd-j1"), ()),
        ("compute.instances.create", VM.format("us-east-1-b", "spotd-j1"), ("control",)),
        ("compute.instances.create", VM.format("us-east-1-b", "web"), ()),
        ("compute.instances.create", VM.format("asia-1-b", "spotd-j1"), ()),
        ("compute.disks.create", "projects/lab/zones/us-east-1-b/disks/spotd-j1", ("control",)),
        ("compute.disks.list", "projects/lab", ("control",)),
        ("compute.disks.delete", "projects/lab/zones/us-east-1-b/disks/spotd-j1", ("control",)),
        ("compute.disks.delete", "projects/lab/zones/us-east-1-b/disks/database", ()),
        ("compute.disks.delete", "projects/lab/zones/asia-1-b/disks/spotd-j1", ()),
        ("compute.instances.detachDisk", VM.format("us-east-1-b", "spotd-j1"), ()),
        ("compute.instances.setLabels", VM.format("eu-west-1-a", "spotd-j1"), ("control",)),
        ("compute.instances.setLabels", VM.format("us-east-1-b", "database"), ()),
        ("compute.instances.delete", VM.format("eu-west-1-a", "spotd-j1"), ("control", "reaper")),
        ("compute.instances.delete", VM.format("us-east-1-b", "database"), ()),
        ("compute.instances.delete", VM.format("us-east-10-b", "spotd-j1"), ()),
        (
            "iam.serviceAccounts.actAs",
            "projects/lab/serviceAccounts/spotd-node-d0@lab.iam.gserviceaccount.com",
            ("control",),
        ),
        ("iam.serviceAccounts.actAs", "projects/lab/serviceAccounts/admin@lab", ()),
        ("storage.objects.get", BLOB.format("jobs/j1/HEAD"), ("control", "node")),
        ("storage.objects.create", BLOB.format("jobs/j1/HEAD"), ("control", "node")),
        ("storage.objects.get", BLOB.format("other"), ("control",)),
        ("storage.objects.get", "projects/_/buckets/ours/objects/spotd/x", ("control",)),
        ("storage.objects.get", "projects/_/buckets/runs/objects/teammate/x", ()),
        ("storage.buckets.delete", "projects/_/buckets/runs", ()),
        ("resourcemanager.projects.setIamPolicy", "projects/lab", ()),
    ],
)
def test_gcp(permission: str, name: str, allowed: tuple[str, ...]) -> None:
    documents = gcp(GCP_FACTS)
    result = {role: gcp_allows(documents[f"spotd-{role}-d0"], permission, name) for role in ROLES}
    assert result == {role: role in allowed for role in ROLES}


def test_gcp_lists_below_a_prefix_alone() -> None:
    node = gcp(GCP_FACTS)["spotd-node-d0"]
    bucket = "projects/_/buckets/runs"
    assert gcp_allows(node, "storage.objects.list", bucket, "team/jobs/j1/")
    assert not gcp_allows(node, "storage.objects.list", bucket, "team/")
    assert not gcp_allows(node, "storage.objects.list", bucket)
    assert not gcp_allows(node, "storage.objects.list", "projects/_/buckets/web", "team/jobs/j1/")


def test_gcp_a_store_that_is_a_whole_bucket_is_that_one_alone() -> None:
    """Bindings are on the project, so their conditions are evaluated for every bucket in it."""
    control = gcp(replace(GCP_FACTS, own_store="gs://ours"))["spotd-control-d0"]
    for right in ("storage.objects.get", "storage.objects.delete"):
        assert gcp_allows(control, right, "projects/_/buckets/ours/objects/any")
        assert not gcp_allows(control, right, "projects/_/buckets/web/objects/any")
        assert not gcp_allows(control, right, "projects/_/buckets/ours-too/objects/any")
    assert gcp_allows(control, "storage.objects.list", "projects/_/buckets/ours", "")
    assert gcp_allows(control, "storage.objects.list", "projects/_/buckets/ours", "x/")
    for bucket in ("web", "ours-too"):
        assert not gcp_allows(control, "storage.objects.list", f"projects/_/buckets/{bucket}", "x")


def test_gcp_denies_a_machine_what_somebody_may_grant_later() -> None:
    node = gcp(GCP_FACTS)["spotd-node-d0"]
    rights = ["compute.instances.create", "compute.instances.delete", "iam.serviceAccounts.actAs"]
    generous = {**node, "grants": [*node["grants"], {"includedPermissions": rights}]}
    assert not any(gcp_allows(generous, right, "projects/lab") for right in rights)


# --- Azure

GROUP = "/subscriptions/s0/resourceGroups/spotd"
AZ_FACTS = replace(FACTS, own_store="az://ours/spotd", checkpoint_store="az://runs/team")
COMPUTE = "Microsoft.Compute/virtualMachines"
BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
EVERYWHERE = "/subscriptions/s0"
AZ_ROLES = (*ROLES, "market")
AZ_MARKET = {
    "Microsoft.Compute/skus/read",
    "Microsoft.Compute/locations/usages/read",
    "Microsoft.Compute/locations/operations/read",
    "Microsoft.Compute/locations/placementScores/generate/action",  # it reckons, and makes nothing
    "Microsoft.ResourceGraph/resources/read",  # eviction rates
    f"{COMPUTE}/read",
    # For the doctor.
    "Microsoft.Resources/subscriptions/read",
    "Microsoft.Authorization/permissions/read",
    "Microsoft.Compute/locations/publishers/artifacttypes/offers/skus/versions/read",
}
AZ_LEFT = (
    "Microsoft.Compute/disks",
    "Microsoft.Network/networkInterfaces",
    "Microsoft.Network/publicIPAddresses",
)


@pytest.mark.parametrize(
    ("action", "scope", "where", "allowed"),
    [
        (f"{COMPUTE}/read", GROUP, (), ("control", "reaper")),
        (f"{COMPUTE}/write", GROUP, (), ("control",)),  # its tags as well
        (f"{COMPUTE}/delete", GROUP, (), ("control", "reaper")),
        (f"{COMPUTE}/delete", "/subscriptions/s0/resourceGroups/other", (), ()),
        (f"{COMPUTE}/delete", "/subscriptions/s0/resourceGroups/spotd2", (), ()),
        *[(f"{left}/read", GROUP, (), ("control",)) for left in AZ_LEFT],
        *[(f"{left}/delete", GROUP, (), ("control", "reaper")) for left in AZ_LEFT],
        *[(f"{left}/delete", "/subscriptions/s0/resourceGroups/other", (), ()) for left in AZ_LEFT],
        *[(action, EVERYWHERE, (), ("market",)) for action in sorted(AZ_MARKET)],
        (f"{COMPUTE}/write", EVERYWHERE, (), ()),
        (f"{COMPUTE}/delete", EVERYWHERE, (), ()),
        ("Microsoft.Compute/skus/read", "/subscriptions/s1", (), ()),
        ("Microsoft.Compute/availabilitySets/write", GROUP, (), ("control",)),
        ("Microsoft.Compute/availabilitySets/delete", GROUP, (), ("control",)),
        (f"{COMPUTE}/runCommand/action", GROUP, (), ()),
        ("Microsoft.Authorization/roleAssignments/write", GROUP, (), ()),
        (f"{BLOBS}/read", GROUP, ("runs", "team/jobs/j1/HEAD"), ("control", "node")),
        (f"{BLOBS}/write", GROUP, ("runs", "team/jobs/j1/HEAD"), ("control", "node")),
        (f"{BLOBS}/read", GROUP, ("runs", "team/other"), ("control",)),
        (f"{BLOBS}/read", GROUP, ("ours", "spotd/packages/ab"), ("control",)),
        (f"{BLOBS}/read", GROUP, ("stranger", "team/jobs/j1/HEAD"), ()),
    ],
)
def test_azure(action: str, scope: str, where: tuple[str, ...], allowed: tuple[str, ...]) -> None:
    documents = azure(AZ_FACTS)
    thing = f"{scope}/providers/x"
    result = {
        role: azure_allows(documents[f"spotd-{role}-d0"], action, thing, *where)
        for role in AZ_ROLES
    }
    if scope.startswith(f"{EVERYWHERE}/") and action in AZ_MARKET:
        allowed = (*allowed, "market")  # a subscription has its groups in it
    assert result == {role: role in allowed for role in AZ_ROLES}


def test_azure_reads_and_changes_nothing_outside_its_group() -> None:
    documents = azure(AZ_FACTS)
    wide = {name for name, role in documents.items() if role["AssignableScopes"] == [EVERYWHERE]}
    assert wide == {"spotd-market-d0"}
    assert {*documents["spotd-market-d0"]["Actions"]} == AZ_MARKET
    assert [
        item for item in AZ_MARKET if not item.endswith(("/read", "Scores/generate/action"))
    ] == []


def test_a_store_that_jobs_name_is_theirs_as_well() -> None:
    facts = replace(FACTS, job_stores=("s3://my-bucket/finetune", "gs://other/x"))
    node = aws(facts)[facts.name("node")]
    for key, good in {
        "my-bucket/finetune/jobs/j1/HEAD": True,
        "runs/team/jobs/j1/HEAD": True,
        "my-bucket/finetune/other": False,
        "my-bucket/jobs/j1/HEAD": False,
    }.items():
        assert aws_allows(node, "s3:PutObject", f"arn:aws:s3:::{key}", **HERE) is good
    bare = aws(FACTS)[FACTS.name("node")]
    object_ = "arn:aws:s3:::my-bucket/finetune/jobs/j1/HEAD"
    assert not aws_allows(bare, "s3:PutObject", object_, **HERE)


FIS = "arn:aws:fis:us-east-1:123456789012:"
THEIRS = {"aws__ResourceTag___spotd-deployment": "d1"}


@pytest.mark.parametrize(
    ("action", "resource", "context", "good"),
    [
        ("fis:CreateExperimentTemplate", f"{FIS}experiment-template/*", TAGGED, True),
        ("fis:CreateExperimentTemplate", f"{FIS}experiment-template/*", {}, False),
        (
            "fis:CreateExperimentTemplate",
            f"{FIS}action/aws:ec2:send-spot-instance-interruptions",
            {},
            True,
        ),
        ("fis:CreateExperimentTemplate", f"{FIS}action/aws:ec2:stop-instances", {}, False),
        ("fis:StartExperiment", f"{FIS}experiment/*", TAGGED, True),
        ("fis:StartExperiment", f"{FIS}experiment-template/EXT1", MINE, True),
        # Somebody else's experiment, with whatever role that has, by our tag alone.
        ("fis:StartExperiment", f"{FIS}experiment-template/EXT1", THEIRS | TAGGED, False),
        ("fis:DeleteExperimentTemplate", f"{FIS}experiment-template/EXT1", THEIRS, False),
        (
            "iam:PassRole",
            "arn:aws:iam::123456789012:role/spotd-interrupt-d0",
            {"iam__PassedToService": "fis.amazonaws.com"},
            True,
        ),
        (
            "iam:PassRole",
            "arn:aws:iam::123456789012:role/spotd-control-d0",
            {"iam__PassedToService": "fis.amazonaws.com"},
            False,
        ),
        ("ec2:SendSpotInstanceInterruptions", MACHINE, MINE, False),  # FIS does that
    ],
)
def test_who_rehearses_runs_experiments_of_ours_and_of_one_kind(
    action: str, resource: str, context: dict[str, str], good: bool
) -> None:
    document = aws(FACTS)["spotd-rehearse-d0"]
    assert aws_allows(document, action, resource, **HERE, **context) is good


@pytest.mark.parametrize(("context", "good"), [(MINE, True), (THEIRS, False), ({}, False)])
def test_an_experiment_takes_machines_of_ours_back_and_does_nothing_else(
    context: dict[str, str], good: bool
) -> None:
    document = aws(FACTS)["spotd-interrupt-d0"]
    action = "ec2:SendSpotInstanceInterruptions"
    assert aws_allows(document, action, MACHINE, **HERE, **context) is good
    for other in ("ec2:TerminateInstances", "ec2:StopInstances", "iam:PassRole"):
        assert not aws_allows(document, other, MACHINE, **HERE, **context)
