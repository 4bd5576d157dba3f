"""What `spotctl doctor` finds out about AWS: against the stand-in, which refuses what it is told to
refuse, and makes nothing of a dry run."""

from __future__ import annotations

from collections.abc import Iterator

import boto3
import pytest

from providers.aws.readiness import quota_of
from providers.base import CapacityType
from providers.readiness import CapacityNeed, Finding, Grade
from tests.clouds.aws.serving import PROFILE, StandIn
from tests.clouds.faults import Fault
from tests.providers.aws.conftest import Rented

REGION = "us-east-1"
P5 = CapacityNeed(
    REGION, "us-east-1a", "p5.48xlarge", CapacityType.SPOT, 2, 192.0, "H100", 8, "llama"
)
P5_SPOT = (REGION, "L-C4BD4855")


@pytest.fixture(autouse=True, scope="module")
def firewall(aws: StandIn) -> Iterator[None]:
    """SSH from one address, as `spotctl init aws` leaves it."""
    ec2 = boto3.Session(profile_name=PROFILE).client("ec2", region_name=REGION)
    tagged = [{"Name": "tag:spotd-network", "Values": ["public"]}]
    [group] = ec2.describe_security_groups(Filters=tagged)["SecurityGroups"]
    rule = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22}
    rule["IpRanges"] = [{"CidrIp": "203.0.113.7/32"}]  # type: ignore[assignment]
    ec2.authorize_security_group_ingress(GroupId=group["GroupId"], IpPermissions=[rule])
    yield
    ec2.revoke_security_group_ingress(GroupId=group["GroupId"], IpPermissions=[rule])
    ec2.close()


@pytest.fixture(autouse=True)
def quotas(aws: StandIn) -> Iterator[None]:
    yield
    aws.ec2.quotas.clear()


def examined(rented: Rented, *needs: CapacityNeed, **settings: object) -> dict[str, Finding]:
    found = rented.cloud(regions=(REGION,), **settings).examine(needs)
    assert len({one.check for one in found}) == len(found)
    return {one.check: one for one in found}


def test_an_account_that_is_ready(rented: Rented) -> None:
    rented.cloud().launch(rented.request("one"))
    rented.forget()
    found = examined(rented, P5)
    assert {one.grade for one in found.values()} == {Grade.OK}
    assert {*found} == {"credentials", "clock", "permissions", "quota", "image", "network"}
    assert "account 123456789012 (by shared-credentials-file)" in found["credentials"].text
    assert "RunInstances (p5.48xlarge, spot), TerminateInstances" in found["permissions"].text
    assert "384 are needed (2 x p5.48xlarge for llama)" in found["quota"].text
    assert found["network"].text.endswith("SSH from 203.0.113.7/32")
    made = {one.action for one in rented.aws.ec2.seen if one.body.get("DryRun") != "true"}
    assert not [action for action in made if not action.startswith(("Describe", "Get"))]
    assert len(rented.cloud(regions=(REGION,)).list()) == 1, "a dry run ends nothing"


@pytest.mark.parametrize("action", ["RunInstances", "TerminateInstances", "DescribeVolumes"])
def test_a_right_that_is_missing_is_named(rented: Rented, action: str) -> None:
    rented.cloud().launch(rented.request("one"))
    rented.aws.ec2.faults.arm(Fault("unauthorized", (action,)))
    found = examined(rented, P5)["permissions"]
    assert found.grade is Grade.FAIL
    assert f"refused: {action};" in found.text
    assert "spotctl doctor --policy aws" in found.fix


def test_what_cannot_be_tried_is_said(rented: Rented) -> None:
    found = examined(rented)["permissions"]
    assert found.grade is Grade.OK
    assert "not tried: RunInstances (nothing on sale" in found.text
    assert "TerminateInstances (there is no machine" in found.text


def test_a_quota_that_is_too_small_says_how_to_raise_it(rented: Rented) -> None:
    rented.aws.ec2.quotas[P5_SPOT] = 192.0
    found = examined(rented, P5)["quota"]
    assert found.grade is Grade.FAIL
    assert found.text == (
        "All P5 Spot Instance Requests (L-C4BD4855): 192 vCPUs; "
        "384 are needed (2 x p5.48xlarge for llama)"
    )
    assert found.fix.endswith("--quota-code L-C4BD4855 --desired-value 384 --region us-east-1")
    assert (found.serves, found.lacks) == ((P5,), ()), "one machine would be made"
    rented.aws.ec2.quotas[P5_SPOT] = 0.0
    found = examined(rented, P5)["quota"]
    assert (found.serves, found.lacks) == ((), (P5,))


@pytest.mark.parametrize(
    ("kind", "capacity", "code"),
    [
        ("p5.48xlarge", CapacityType.SPOT, "L-C4BD4855"),
        ("p5en.48xlarge", CapacityType.SPOT, "L-C4BD4855"),
        ("p4d.24xlarge", CapacityType.SPOT, "L-7212CCBC"),
        ("p5.48xlarge", CapacityType.ON_DEMAND, "L-417A185B"),
        ("g6.xlarge", CapacityType.SPOT, "L-3819A6DF"),
        ("c5.xlarge", CapacityType.ON_DEMAND, "L-1216C47A"),
        ("p6-b200.48xlarge", CapacityType.SPOT, ""),  # nobody here knows which it is
        ("p5.48xlarge", CapacityType.RESERVED, ""),
    ],
)
def test_each_type_has_its_quota(kind: str, capacity: CapacityType, code: str) -> None:
    found = quota_of(CapacityNeed(REGION, "", kind, capacity))
    assert (found[0] if found else "") == code


def test_an_image_that_is_gone_or_for_other_machines(rented: Rented) -> None:
    found = examined(rented, P5, image="ami-0123")["image"]
    assert found.grade is Grade.FAIL
    assert "`image` of the provider" in found.fix
    arm = CapacityNeed(REGION, "us-east-1a", "c7g.xlarge", CapacityType.SPOT, cpus=4.0)
    text = examined(rented, arm)["image"].text
    assert "is made for x86_64, and c7g.xlarge is not" in text


def test_a_network_that_is_missing_or_open_to_all(rented: Rented) -> None:
    found = examined(rented, P5, network="jump")
    assert found["network"].text == "no subnet has the tag spotd-network=jump"
    assert "spotctl init aws --network jump --region us-east-1" in found["network"].fix
    assert found["permissions"].grade is Grade.OK, "what is missing is no right"
    ec2 = boto3.Session(profile_name=PROFILE).client("ec2", region_name=REGION)
    tagged = [{"Name": "tag:spotd-network", "Values": ["public"]}]
    [group] = ec2.describe_security_groups(Filters=tagged)["SecurityGroups"]
    rule = {"IpProtocol": "tcp", "FromPort": 1, "ToPort": 1024}
    rule["IpRanges"] = [{"CidrIp": "0.0.0.0/0"}]  # type: ignore[assignment]
    ec2.authorize_security_group_ingress(GroupId=group["GroupId"], IpPermissions=[rule])
    try:
        assert examined(rented, P5)["network"].grade is Grade.WARN
    finally:
        ec2.revoke_security_group_ingress(GroupId=group["GroupId"], IpPermissions=[rule])
        ec2.close()


def test_a_queue_that_is_not_there(rented: Rented) -> None:
    found = examined(rented, P5, queue="nobodys")["queue"]
    assert found.grade is Grade.FAIL
    assert "spotctl init aws --queue nobodys" in found.fix


def test_whoever_is_nobody_is_asked_nothing_else(rented: Rented) -> None:
    rented.forget()
    found = examined(rented, P5, profile="nobodys")
    assert {*found} == {"credentials"}
    assert found["credentials"].grade is Grade.FAIL
    assert rented.actions() == []


def test_credentials_that_nobody_renews_are_told(
    rented: Rented, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("ACCESS_KEY_ID", "t"), ("SECRET_ACCESS_KEY", "t"), ("SESSION_TOKEN", "t")):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", rented.aws.endpoint)
    found = examined(rented, P5, profile="")["credentials"]
    assert found.grade is Grade.WARN
    assert "temporary, and nobody renews them" in found.text


def test_a_service_that_refuses_is_a_finding(rented: Rented) -> None:
    rented.aws.ec2.faults.arm(Fault("unauthorized", ("GetServiceQuota",)))
    found = examined(rented, P5)["quota"]
    assert found.grade is Grade.FAIL
    assert "You may not." in found.text
