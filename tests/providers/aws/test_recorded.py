"""Replies of the real EC2, recorded by Apache Libcloud, through botocore's parser and ours. See
tests/fixtures/recorded/ec2/README.md."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import botocore.loaders
import botocore.model
import botocore.parsers
import pytest

from providers.aws import leftovers
from providers.aws.clients import Clients, _translate_error
from providers.aws.cloud import _launched
from providers.aws.listing import instances_of, read_instance
from providers.base import (
    CapacityType,
    InstanceState,
    LeftoverKind,
    RejectedError,
    UnknownOutcome,
)

FOLDER = Path("tests/fixtures/recorded/ec2").absolute()


@cache
def _ec2() -> botocore.model.ServiceModel:
    described = botocore.loaders.Loader().load_service_model("ec2", "service-2")
    return botocore.model.ServiceModel(described, "ec2")


def parsed(file: str, operation: str, status: int = 200) -> dict[str, Any]:
    """Return the SDK's result for the recorded reply."""
    shape = _ec2().operation_model(operation).output_shape
    reply = {"body": (FOLDER / f"{file}.xml").read_bytes(), "headers": {}, "status_code": status}
    return dict(botocore.parsers.create_parser("ec2").parse(reply, shape))


class Recorded(Clients):
    """Answers from the files."""

    def call(
        self, region: str, operation: str, service: str = "ec2", **parameters: Any
    ) -> dict[str, Any]:
        if operation == "describe_placement_groups":  # nobody recorded one
            return {"PlacementGroups": []}
        name = "".join(word.title() for word in operation.split("_"))
        file = {"describe_addresses": "describe_addresses_all"}.get(operation, operation)
        return parsed(file, name)


@pytest.mark.parametrize(
    ("file", "instance"),
    [
        ("run_instances_spot", "i-2ba64344"),
        ("run_instances_idem", "i-2ba64342"),
        ("run_instances_with_subnet_and_security_group", "i-11111111"),
    ],
)
def test_a_launch(file: str, instance: str) -> None:
    answer = parsed(file, "RunInstances")
    assert _launched("us-east-1", answer).instance_id == f"us-east-1/{instance}"


def test_a_launch_of_a_spot_machine() -> None:
    [row] = parsed("run_instances_spot", "RunInstances")["Instances"]
    result = read_instance("us-east-1", row)
    assert (result.capacity_type, result.state) == (CapacityType.SPOT, InstanceState.PENDING)
    assert (result.zone, result.instance_type) == ("us-east-1b", "m1.small")
    assert result.launched_at_us == 1_186_487_510_000_000
    [row] = parsed("run_instances_idem", "RunInstances")["Instances"]
    assert read_instance("us-east-1", row).token == "testclienttoken"


def test_a_launch_in_a_subnet() -> None:
    file = "run_instances_with_subnet_and_security_group"
    [row] = parsed(file, "RunInstances")["Instances"]
    result = read_instance("us-east-1", row)
    assert (result.host, result.token, result.tags) == ("192.0.2.5", "", {})
    assert (result.error, result.error_code) == ("", "")  # "pending" is the reason of its state


def test_a_token_that_was_used_for_something_else() -> None:
    answer = parsed("run_instances_idem_mismatch", "RunInstances", 400)
    error = _translate_error(answer, "us-east-1")
    assert type(error) is RejectedError
    assert error.code == "IdempotentParameterMismatch"
    assert "inconsistent with arguments used in previous request" in str(error)


def test_a_listing() -> None:
    answer = parsed("describe_instances", "DescribeInstances")
    result = [read_instance("us-east-1", row) for row in instances_of(answer["Reservations"])]
    assert [(item.instance_id, item.host) for item in result] == [
        ("us-east-1/i-4382922a", "1.2.3.4"),
        ("us-east-1/i-8474834a", "1.2.3.5"),
    ]
    assert {item.state for item in result} == {
        InstanceState.STOPPING
    }  # "stopped": never ours to keep
    assert result[0].error == "Client.UserInitiatedShutdown: User initiated shutdown"
    assert {item.capacity_type for item in result} == {CapacityType.ON_DEMAND}


def test_an_end() -> None:
    [row] = parsed("terminate_instances", "TerminateInstances")["TerminatingInstances"]
    assert (row["InstanceId"], row["PreviousState"]["Name"]) == ("i-4382922a", "running")


def test_leftovers() -> None:
    """EC2 filters by tag and status, so the adapter only has to judge addresses; those of the
    classic network have no id by which to release them."""
    result = list(leftovers.find(Recorded(), "us-east-1", "d0"))
    assert [item.leftover_id for item in result if item.kind is LeftoverKind.ADDRESS] == [
        "us-east-1/eipalloc-922a5cf3",
        "us-east-1/eipalloc-992a5cf8",
    ]
    disk = result[0]
    assert (disk.kind, disk.zone) == (LeftoverKind.DISK, "us-east-1d")
    assert disk.since_us == 1_381_297_297_000_000
    cards = [item.leftover_id for item in result if item.kind is LeftoverKind.NETWORK_INTERFACE]
    assert cards == ["us-east-1/eni-18e6c05e", "us-east-1/eni-83e3c5c5"]
    [classic] = parsed("describe_addresses_single", "DescribeAddresses")["Addresses"]
    assert "AllocationId" not in classic


def test_a_reply_of_another_kind_is_no_launch() -> None:
    with pytest.raises(UnknownOutcome, match="without a machine"):
        _launched("us-east-1", parsed("describe_volumes", "RunInstances"))
