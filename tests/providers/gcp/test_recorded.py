"""Replies recorded by others are parsed like ours (tests/fixtures/recorded/gce)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from providers.base import (
    CapacityType,
    InstanceState,
    LeftoverKind,
    RejectedError,
    parse_timestamp_us,
)
from providers.gcp.clients import _check_complete
from providers.gcp.codes import EXISTS, operation_error
from providers.gcp.leftovers import read_disk
from providers.gcp.listing import read_instance
from providers.gcp.names import target_of
from providers.gcp.operations import is_done, read_creates
from providers.gcp.types import read_type
from tests.fixtures.later import Later

compute_v1: Any = Later("google.cloud.compute_v1")

FOLDER = Path(__file__).parents[2] / "fixtures" / "recorded" / "gce"
EUROPE = "europe-west1-a/libcloud-demo-europe-np-node"


def load(name: str, model: Any) -> Any:
    return model.from_json((FOLDER / f"{name}.json").read_text(), ignore_unknown_fields=True)


def test_machines() -> None:
    page = load("aggregated_instances", compute_v1.InstanceAggregatedList)
    rows = [row for scope in page.items.values() for row in scope.instances]
    result = {
        item.instance_id: item for item in (read_instance(row, "ssh-ed25519 A") for row in rows)
    }
    assert len(result) == 8
    one = result[EUROPE]
    assert (one.region, one.zone) == ("europe-west1", "europe-west1-a")
    assert (one.host, one.instance_type) == ("23.251.128.10", "n1-standard-1")
    assert one.capacity_type is CapacityType.ON_DEMAND
    assert one.launched_at_us == parse_timestamp_us("2013-12-13T18:43:12.706Z")
    states = [machine.state for machine in result.values()]
    assert states.count(InstanceState.RUNNING) == 7
    assert states.count(InstanceState.STOPPING) == 1  # it is suspended


def test_zones_without_machines_are_no_gap_in_the_list() -> None:
    page = load("aggregated_instances", compute_v1.InstanceAggregatedList)
    warnings = [scope.warning.code for scope in page.items.values() if scope.warning.code]
    assert warnings
    for scope in page.items.values():
        _check_complete("instances", scope.warning, ())


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("zones_us-central1-a_instances_node-name", InstanceState.RUNNING),
        ("zones_us_central1_a_instances_stopped_node", InstanceState.STOPPING),
    ],
)
def test_a_machine(name: str, state: InstanceState) -> None:
    row = load(name, compute_v1.Instance)
    one = read_instance(row, "ssh-ed25519 A")
    assert (one.state, one.host) == (state, "23.236.58.15")
    assert read_instance(row).host == "", "nobody could tell whom they reach there"


def test_disks() -> None:
    page = load("aggregated_disks", compute_v1.DiskAggregatedList)
    left = [
        read_disk(scope.partition("/")[2], row)
        for scope, scoped in page.items.items()
        for row in scoped.disks
    ]
    one = next(disk for disk in left if disk.leftover_id == "us-central1-b/test1")
    assert (one.kind, one.region) == (LeftoverKind.DISK, "us-central1")
    assert one.since_us == parse_timestamp_us("2013-09-04T11:03:54.122-07:00")


def test_machine_types() -> None:
    page = load("aggregated_machineTypes", compute_v1.MachineTypeAggregatedList)
    types = [read_type(row) for scope in page.items.values() for row in scope.machine_types]
    assert len(types) == 100
    one = next(kind for kind in types if kind.name == "n1-standard-4")
    assert (one.cpus, one.memory_gib, one.accelerator_count) == (4, 15.0, 0)


def test_a_create_that_is_accepted_and_one_that_fails() -> None:
    """The same operation, at first and at last."""
    begun = load("zones_europe-west1-a_instances_post", compute_v1.Operation)
    over = load("operations_operation_zones_europe-west1-a_instances_post", compute_v1.Operation)
    assert (is_done(begun), is_done(over)) == (False, True)
    assert begun.name == over.name
    assert target_of(over.target_link) == EUROPE
    assert operation_error(begun) is None
    error = operation_error(over)
    assert isinstance(error, RejectedError)
    assert error.code in EXISTS
    # Nobody proves that it was ours.
    assert read_creates("d0", [begun, over]) == []


def test_a_create_that_succeeds() -> None:
    over = load("operations_operation_zones_us-central1-a_instances_post", compute_v1.Operation)
    assert is_done(over)
    assert operation_error(over) is None
