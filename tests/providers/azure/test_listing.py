"""Parsing Azure's machines; and the number of calls."""

from __future__ import annotations

from typing import Any

import pytest

from providers.azure.addresses import host_of, private_hosts, public_hosts
from providers.azure.listing import failure_of, read_instance, state_of
from providers.base import CapacityType, InstanceState, UnknownOutcome, parse_timestamp_us
from tests.clouds.azure.serving import StandIn
from tests.clouds.faults import Fault
from tests.providers.azure.rig import again, provider, request

RUNNING, PENDING, STOPPING, FAILED = (
    InstanceState.RUNNING,
    InstanceState.PENDING,
    InstanceState.STOPPING,
    InstanceState.FAILED,
)


def view(*codes: str, **more: Any) -> dict[str, Any]:
    return {"statuses": [{"code": code, "level": "Info", **more} for code in codes]}


@pytest.mark.parametrize(
    ("provisioning", "power", "state"),
    [
        ("Creating", "", PENDING),
        ("Creating", "starting", PENDING),
        ("Creating", "running", PENDING),
        ("Succeeded", "running", RUNNING),
        ("Succeeded", "starting", PENDING),
        ("Succeeded", "", RUNNING),  # the list of statuses lags behind
        ("Updating", "running", RUNNING),
        ("Migrating", "running", RUNNING),
        ("Succeeded", "stopping", STOPPING),
        ("Succeeded", "stopped", STOPPING),  # off, and paid for
        ("Succeeded", "deallocating", STOPPING),
        ("Succeeded", "deallocated", STOPPING),
        ("Deleting", "running", STOPPING),
        ("Deleting", "", STOPPING),
        ("Failed", "", FAILED),
        ("Failed", "deallocated", FAILED),
        ("Failed", "stopped", FAILED),
        ("Failed", "running", RUNNING),  # what failed was not its create
        ("Failed", "starting", RUNNING),
    ],
)
def test_states(provisioning: str, power: str, state: InstanceState) -> None:
    row = {"properties": {"provisioningState": provisioning}}
    reported = view(
        f"ProvisioningState/{provisioning.lower()}", *([f"PowerState/{power}"] if power else [])
    )
    assert state_of(row, reported) is state


def test_a_machine_of_which_nobody_knows_the_power() -> None:
    assert state_of({"properties": {"provisioningState": "Succeeded"}}, None) is RUNNING
    # It may train: what is given up for a husk would be replaced, and paid for all the same.
    assert state_of({"properties": {"provisioningState": "Failed"}}, None) is PENDING


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (
            {"code": "ProvisioningState/failed/AllocationFailed", "message": "No room."},
            ("No room.", "CapacityError"),
        ),
        (
            {"code": "ProvisioningState/failed/OperationNotAllowed", "message": "LowPriorityCores"},
            ("LowPriorityCores", "QuotaError"),
        ),
        (
            {"code": "provisioningState/Failed/AllocationFailed", "displayStatus": "Failed"},
            ("Failed", "CapacityError"),
        ),
        (
            {"code": "ProvisioningState/failed"},
            ("the create failed, and Azure does not say why", ""),
        ),
        ({"code": "PowerState/stopped"}, ("the create failed, and Azure does not say why", "")),
    ],
)
def test_why_a_create_failed(status: dict[str, str], error: tuple[str, str]) -> None:
    assert failure_of({"statuses": [status]}) == error


def test_a_machine_as_azure_may_write_it() -> None:
    """The region's display name, a time with an offset, no tags, no zone."""
    row = {
        "name": "vm",
        "id": "/subscriptions/s/resourceGroups/G/providers/Microsoft.Compute/virtualMachines/vm",
        "location": "West US",
        "properties": {
            "provisioningState": "Succeeded",
            "hardwareProfile": {"vmSize": "Standard_DS3_v2"},
            "timeCreated": "2021-06-27T01:02:38.3138469+00:00",
        },
    }
    result = read_instance(row)
    assert (result.region, result.zone, result.token) == ("westus", "westus-any", "vm")
    assert result.launched_at_us == 1_624_755_758_313_846
    assert (result.capacity_type, result.tags) == (CapacityType.ON_DEMAND, {})


def test_a_machine_that_the_statuses_do_not_show_yet(
    azure: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = provider(azure)
    cloud.launch(request("unseen"))
    monkeypatch.setattr("tests.clouds.azure.arm._status_of", lambda machine: {"id": "/x"})
    assert cloud.list()[0].state is RUNNING
    azure.arm.machine("unseen").become("Failed")
    assert cloud.list()[0].state is PENDING
    assert cloud.leftovers() == []


@pytest.mark.parametrize(
    ("properties", "capacity"),
    [
        ({"priority": "Spot"}, CapacityType.SPOT),
        ({"priority": "Low"}, CapacityType.SPOT),
        ({"priority": "Regular"}, CapacityType.ON_DEMAND),
        ({}, CapacityType.ON_DEMAND),
        ({"capacityReservation": {"capacityReservationGroup": {"id": "x"}}}, CapacityType.RESERVED),
    ],
)
def test_capacity(properties: dict[str, Any], capacity: CapacityType) -> None:
    row = {"name": "x", "location": "eastus", "properties": properties}
    assert read_instance(row).capacity_type is capacity


@pytest.mark.parametrize("text", ["", None, "yesterday", 5])
def test_what_is_no_time(text: object) -> None:
    assert parse_timestamp_us(text) == 0


def test_an_address_belongs_to_the_machine_of_its_card_however_ids_are_written() -> None:
    card = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/networkInterfaces/c"
    row = {"properties": {"networkProfile": {"networkInterfaces": [{"id": card.upper()}]}}}
    ip = {
        "ipAddress": "198.18.0.1",
        "ipConfiguration": {"id": f"{card}/ipConfigurations/ip"},
    }
    assert host_of(row, public_hosts([{"properties": ip}])) == "198.18.0.1"
    private = {
        "id": card,
        "properties": {"ipConfigurations": [{"properties": {"privateIPAddress": "10.0.0.4"}}]},
    }
    assert host_of(row, private_hosts([private])) == "10.0.0.4"
    assert host_of(row, public_hosts([{"properties": {**ip, "ipConfiguration": None}}])) == ""
    assert host_of({"properties": {}}, {"x": "y"}) == ""


# --- how many questions


@pytest.mark.parametrize(
    ("network", "addresses", "page", "pages"),
    [("public", "LIST publicIPAddresses", 50, 1), ("private", "LIST networkInterfaces", 20, 3)],
)
def test_a_listing_of_fifty_machines(
    azure: StandIn, network: str, addresses: str, page: int, pages: int
) -> None:
    """All of them, each with its own address, by three queries and their further pages."""
    cloud = provider(azure, network=network)
    for number in range(50):
        cloud.launch(request(f"many-{network}-{page}-{number}"))
    others = len(azure.arm.world.machines) - 50
    azure.arm.page = page
    try:
        first = cloud.list()
        cards = azure.arm.counted().count("LIST networkInterfaces")
        assert cards == (3 if page == 20 else 1), "whose addresses are new"
        azure.arm.calls.clear()
        result = cloud.list()
    finally:
        azure.arm.page = 50
    assert len(result) == 50
    assert result == first
    assert len({item.host for item in result} - {""}) == 50
    assert len({item.private_host for item in result} - {""}) == 50
    assert all((item.host == item.private_host) == (network == "private") for item in result)
    assert {item.state for item in result} == {RUNNING}
    counted = azure.arm.counted()
    in_group = [c for c in azure.arm.calls if "/resourceGroups/" in c.path]
    assert counted.count(addresses) == pages
    assert len([c for c in in_group if c.call == "LIST virtualMachines"]) == pages
    status = len(counted) - len(in_group)
    assert status == -(-(50 + others) // page)
    assert len(counted) == 2 * pages + status
    for item in result:
        cloud.terminate(item.instance_id)


def test_an_empty_group_costs_one_question(azure: StandIn) -> None:
    cloud = provider(azure)
    assert cloud.list() == []
    assert azure.arm.counted() == ["LIST virtualMachines"]


@pytest.mark.parametrize("what", ["LIST publicIPAddresses", "LIST virtualMachines"])
def test_half_an_answer_is_none(azure: StandIn, what: str) -> None:
    cloud = provider(azure)
    cloud.launch(request("half"))
    azure.arm.faults.arm(Fault("http_500", (what,)))
    with pytest.raises(UnknownOutcome):
        cloud.list()
    assert len(cloud.list()) == 1


def test_another_deployment_in_the_group_is_not_ours(azure: StandIn) -> None:
    cloud = provider(azure)
    cloud.launch(request("ours"))
    other = again(cloud, azure, deployment="d1")
    assert other.list() == []
    assert other.leftovers() == []
