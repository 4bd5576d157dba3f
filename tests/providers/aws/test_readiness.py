"""The readiness checks for AWS, against the stand-in, which refuses calls on request and does
nothing for a dry run."""

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
    """SSH from one address, as `spotctl init aws` sets it up."""
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
    result = rented.cloud(regions=(REGION,), **settings).check_readiness(needs)
    assert len({item.check for item in result}) == len(result)
    return {item.check: item for item in result}


def test_an_account_that_is_ready(rented: Rented) -> None:
    rented.cloud().launch(rented.request("one"))
    rented.forget()
    result = examined(rented, P5)
    assert {item.grade for item in result.values()} == {Grade.OK}
    assert {*result} == {"credentials", "clock", "permissions", "quota", "image", "network"}
    assert "account 123456789012 (by shared-credentials-file)" in result["credentials"].text
    assert "RunInstances (p5.48xlarge, spot), TerminateInstances" in result["permissions"].text
    assert "384 are needed (2 x p5.48xlarge for llama)" in result["quota"].text
    assert result["network"].text.endswith("SSH from 203.0.113.7/32")
    made = {item.action for item in rented.aws.ec2.seen if item.body.get("DryRun") != "true"}
    assert not [action for action in made if not action.startswith(("Describe", "Get"))]
    assert len(rented.cloud(regions=(REGION,)).list()) == 1, "a dry run ends nothing"


@pytest.mark.parametrize("action", ["RunInstances", "TerminateInstances", "DescribeVolumes"])
def test_a_right_that_is_missing_is_named(rented: Rented, action: str) -> None:
    rented.cloud().launch(rented.request("one"))
    rented.aws.ec2.faults.arm(Fault("unauthorized", (action,)))
    result = examined(rented, P5)["permissions"]
    assert result.grade is Grade.FAIL
    assert f"refused: {action};" in result.text
    assert "spotctl doctor --policy aws" in result.fix


def test_what_cannot_be_tried_is_said(rented: Rented) -> None:
    result = examined(rented)["permissions"]
    assert result.grade is Grade.OK
    assert "not tried: RunInstances (no offer" in result.text
    assert "TerminateInstances (there is no machine" in result.text


def test_a_quota_that_is_too_small_says_how_to_raise_it(rented: Rented) -> None:
    rented.aws.ec2.quotas[P5_SPOT] = 192.0
    result = examined(rented, P5)["quota"]
    assert result.grade is Grade.FAIL
    assert result.text == (
        "All P5 Spot Instance Requests (L-C4BD4855): 192 vCPUs; "
        "384 are needed (2 x p5.48xlarge for llama)"
    )
    assert result.fix.endswith("--quota-code L-C4BD4855 --desired-value 384 --region us-east-1")
    assert (result.serves, result.lacks) == ((P5,), ()), "one machine would be made"
    rented.aws.ec2.quotas[P5_SPOT] = 0.0
    result = examined(rented, P5)["quota"]
    assert (result.serves, result.lacks) == ((), (P5,))


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
    result = quota_of(CapacityNeed(REGION, "", kind, capacity))
    assert (result[0] if result else "") == code


def test_an_image_that_is_gone_or_for_other_machines(rented: Rented) -> None:
    result = examined(rented, P5, image="ami-0123")["image"]
    assert result.grade is Grade.FAIL
    assert "`image` of the provider" in result.fix
    arm = CapacityNeed(REGION, "us-east-1a", "c7g.xlarge", CapacityType.SPOT, cpus=4.0)
    text = examined(rented, arm)["image"].text
    assert "is made for x86_64, and c7g.xlarge is not" in text


def test_a_network_that_is_missing_or_open_to_all(rented: Rented) -> None:
    result = examined(rented, P5, network="jump")
    assert result["network"].text == "no subnet has the tag spotd-network=jump"
    assert "spotctl init aws --network jump --region us-east-1" in result["network"].fix
    assert result["permissions"].grade is Grade.OK, "what is missing is not a right"
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
    result = examined(rented, P5, queue="nobodys")["queue"]
    assert result.grade is Grade.FAIL
    assert "spotctl init aws --queue nobodys" in result.fix


def test_whoever_is_nobody_is_asked_nothing_else(rented: Rented) -> None:
    rented.forget()
    result = examined(rented, P5, profile="nobodys")
    assert {*result} == {"credentials"}
    assert result["credentials"].grade is Grade.FAIL
    assert rented.actions() == []


def test_credentials_that_nobody_renews_are_told(
    rented: Rented, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("ACCESS_KEY_ID", "t"), ("SECRET_ACCESS_KEY", "t"), ("SESSION_TOKEN", "t")):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", rented.aws.endpoint)
    result = examined(rented, P5, profile="")["credentials"]
    assert result.grade is Grade.WARN
    assert "temporary, and not renewed" in result.text


def test_a_service_that_refuses_is_a_finding(rented: Rented) -> None:
    rented.aws.ec2.faults.arm(Fault("unauthorized", ("GetServiceQuota",)))
    result = examined(rented, P5)["quota"]
    assert result.grade is Grade.FAIL
    assert "You may not." in result.text
