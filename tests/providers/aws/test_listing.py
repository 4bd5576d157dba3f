"""Parsing EC2's machines: states, reasons of their end, capacity types."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from providers.aws.listing import qualified_name, read_instance, split_name, tags_of
from providers.base import AuthError, CapacityType, Instance, InstanceState, timestamp_us
from tests.clouds.faults import Fault
from tests.providers.aws.conftest import Rented

P, R, S = InstanceState.PENDING, InstanceState.RUNNING, InstanceState.STOPPING
T, F = InstanceState.TERMINATED, InstanceState.FAILED


def read(**changes: Any) -> Instance:
    row: dict[str, Any] = {"InstanceId": "i-1", "State": {"Name": "running"}}
    return read_instance("us-east-1", row | changes)


@pytest.mark.parametrize(
    ("told", "state"),
    [
        ("pending", P),
        ("running", R),
        ("shutting-down", S),
        ("stopping", S),
        ("stopped", S),  # bills for its disk until it is ended
        ("terminated", T),
        ("something-new", P),  # what may be there is never taken as gone
    ],
)
def test_state(told: str, state: InstanceState) -> None:
    assert read(State={"Name": told}).state is state


@pytest.mark.parametrize(
    ("told", "code", "state", "error_code"),
    [
        ("terminated", "Server.InsufficientInstanceCapacity", F, "CapacityError"),
        ("terminated", "Server.InternalError", F, "UnknownOutcome"),
        ("terminated", "Client.VolumeLimitExceeded", F, "QuotaError"),
        ("terminated", "Client.InternalError", F, "UnpreparedError"),
        ("terminated", "Client.InvalidSnapshot.NotFound", F, "UnpreparedError"),
        ("terminated", "Server.SpotInstanceTermination", T, ""),
        ("terminated", "Server.SpotInstanceShutdown", T, ""),
        ("terminated", "Client.UserInitiatedShutdown", T, ""),
        ("terminated", "Client.InstanceInitiatedShutdown", T, ""),
        ("terminated", "Server.ScheduledStop", T, ""),
        ("shutting-down", "Server.InternalError", S, ""),  # may have run; it is still there
        ("shutting-down", "Client.UserInitiatedShutdown", S, ""),
    ],
)
def test_why_it_ended(told: str, code: str, state: InstanceState, error_code: str) -> None:
    message = "Client error on launch" if code == "Client.InternalError" else "the words"
    result = read(State={"Name": told}, StateReason={"Code": code, "Message": message})
    assert (result.state, result.error_code, result.error) == (state, error_code, message)


def test_the_reason_of_a_machine_that_lives_is_no_error() -> None:
    result = read(StateReason={"Code": "pending", "Message": "pending"})
    assert (result.state, result.error) == (R, "")
    assert read(State={"Name": "terminated"}, StateReason={"Code": "", "Message": ""}).error == ""
    only = read(State={"Name": "terminated"}, StateReason={"Code": "Server.New"})
    assert (only.state, only.error) == (T, "Server.New")


@pytest.mark.parametrize(
    ("row", "sold"),
    [
        ({"InstanceLifecycle": "spot"}, CapacityType.SPOT),
        ({"InstanceLifecycle": "capacity-block"}, CapacityType.BLOCK),
        (
            {"InstanceLifecycle": "capacity-block", "CapacityReservationId": "cr-1"},
            CapacityType.BLOCK,
        ),
        ({"InstanceLifecycle": "scheduled"}, CapacityType.RESERVED),
        ({"CapacityReservationId": "cr-1"}, CapacityType.RESERVED),
        ({}, CapacityType.ON_DEMAND),
    ],
)
def test_how_it_was_sold(row: dict[str, Any], sold: CapacityType) -> None:
    assert read(**row).capacity_type is sold


def test_where_it_is_and_whose() -> None:
    at = datetime(2026, 11, 22, 10, tzinfo=UTC)
    tags = [{"Key": "spotd-token", "Value": "t1"}, {"Key": "spotd-expires", "Value": "1900000000"}]
    result = read(
        Tags=tags,
        ClientToken="another",
        Placement={"AvailabilityZone": "us-east-1a"},
        InstanceType="p5.48xlarge",
        PublicIpAddress="203.0.113.9",
        PrivateIpAddress="10.0.0.9",
        LaunchTime=at,
    )
    assert (result.instance_id, result.token) == ("us-east-1/i-1", "t1")
    assert (result.region, result.zone) == ("us-east-1", "us-east-1a")
    assert (result.host, result.port, result.ssh_user) == ("203.0.113.9", 22, "spotd")
    assert result.launched_at_us == int(at.timestamp()) * 1_000_000
    assert result.expires_at_us == 1_900_000_000 * 1_000_000
    assert read(PrivateIpAddress="10.0.0.9", ClientToken="c").host == "10.0.0.9"
    assert read(ClientToken="c").token == "c"
    assert read().host == ""


def test_names() -> None:
    assert split_name(qualified_name("eu-west-2", "i-1")) == ("eu-west-2", "i-1")
    assert split_name("i-1") == split_name("") == ("", "")
    assert tags_of({"TagSet": [{"Key": "a", "Value": "b"}]}, "TagSet") == {"a": "b"}
    assert tags_of({}) == {}
    assert timestamp_us(None) == 0


def test_an_interrupted_machine_is_no_failed_create(rented: Rented) -> None:
    """From the wire: it ran, so its end is not taken for a lack of capacity."""
    cloud = rented.cloud()
    cloud.launch(rented.request("ran"))
    message = "Server.SpotInstanceTermination: Spot instance termination"
    instance = cloud.list()[0].instance_id.partition("/")[2]
    rented.aws.ec2.end("us-east-1", instance, "Server.SpotInstanceTermination", message)
    [result] = cloud.list()
    assert (result.state, result.error, result.error_code) == (T, message, "")


def test_a_listing_of_half_the_regions_is_none(rented: Rented) -> None:
    cloud = rented.cloud()
    cloud.launch(rented.request("east"))
    rented.aws.ec2.faults.arm(Fault("unauthorized", ("DescribeInstances",)))
    with pytest.raises(AuthError):
        cloud.list()
    assert len(cloud.list()) == 1
