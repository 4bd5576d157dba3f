"""The stand-in's validation finds mismatches with Azure's models."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from providers.base import CapacityType, OfferRequest
from tests.clouds.azure.arm import MODELS, Reply
from tests.clouds.azure.catalog import H100
from tests.clouds.azure.held import Reservation
from tests.clouds.azure.serving import StandIn
from tests.clouds.azure.shapes import problems
from tests.fixtures.later import Later
from tests.providers.azure.rig import again, provider, request
from tests.providers.azure.test_market import GROUP

compute: Any = Later("azure.mgmt.compute.models")
network: Any = Later("azure.mgmt.network.models")

GOOD: dict[str, Any] = {
    "location": "eastus",
    "tags": {"spotd-job": "j1"},
    "zones": ["1"],
    "properties": {
        "priority": "Spot",
        "billingProfile": {"maxPrice": -1},
        "hardwareProfile": {"vmSize": "Standard_ND96isr_H100_v5"},
        "timeCreated": "2026-11-22T10:00:00.1234567+00:00",
        "networkProfile": {"networkInterfaces": [{"id": "/x", "properties": {"primary": True}}]},
        "instanceView": {"statuses": [{"code": "PowerState/running", "level": "Info"}]},
    },
}


def test_a_good_one() -> None:
    assert problems(compute, "VirtualMachine", GOOD) == []


@pytest.mark.parametrize(
    ("place", "key", "value", "told"),
    [
        ((), "zone", ["1"], "VirtualMachine.zone: VirtualMachine has no such field"),
        ((), "location", 5, "VirtualMachine.location: 5 is not a str"),
        ((), "zones", "1", "VirtualMachine.zones: '1' is not a list"),
        ((), "tags", {"a": 1}, "VirtualMachine.tags.a: 1 is not a str"),
        ((), "properties", [], "VirtualMachine.properties: [] is not a VirtualMachineProperties"),
        (("properties",), "provisioning_state", "x", "has no such field"),
        (("properties",), "priority", "spot", "'spot' is not one of VirtualMachinePriorityTypes"),
        (("properties",), "timeCreated", "yesterday", "'yesterday' is not a datetime"),
        (("properties", "billingProfile"), "maxPrice", "-1", "'-1' is not a float"),
        (("properties", "billingProfile"), "maxPrice", True, "True is not a float"),
        (("properties", "hardwareProfile"), "vmsize", "x", "HardwareProfile has no such field"),
        (("properties", "instanceView"), "status", [], "has no such field"),
    ],
)
def test_what_is_wrong_is_found(place: tuple[str, ...], key: str, value: object, told: str) -> None:
    document = copy.deepcopy(GOOD)
    inner = document
    for step in place:
        inner = inner[step]
    inner[key] = value
    result = problems(compute, "VirtualMachine", document)
    assert len(result) == 1
    assert told in result[0]


def test_a_field_in_a_list_of_another_package() -> None:
    card = {"properties": {"ipConfigurations": [{"name": "ip", "properties": {"subnett": {}}}]}}
    assert problems(network, "NetworkInterface", card) == [
        (
            "NetworkInterface.properties.ipConfigurations[0].properties.subnett: "
            "NetworkInterfaceIPConfigurationPropertiesFormat has no such field"
        )
    ]


@pytest.mark.parametrize("kind", MODELS)
def test_every_kind_of_answer_is_looked_at(
    kind: str, running: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A misspelt field in any of them is found on its way to the client."""
    arm = running.arm
    answer = arm._answer

    def misspell(*args: Any) -> Reply:
        reply = answer(*args)
        body = reply.body if isinstance(reply.body, dict) else {}
        if "value" in body:
            return Reply(reply.status, {"value": [{**row, "naem": "x"} for row in body["value"]]})
        if "id" in body:
            return Reply(reply.status, {**body, "naem": "x"}, reply.headers)
        return reply

    monkeypatch.setattr(arm, "_answer", misspell)
    cloud = provider(running)
    resource_id = GROUP.format(cloud._group)
    running.arm.held.add(resource_id, Reservation("one", "eastus", "1", H100, 1))
    cloud = again(cloud, running, reservations={resource_id: 0})
    cloud.offers(OfferRequest())
    plain = {"capacity_type": CapacityType.ON_DEMAND, "zone": "eastus-any"}
    cloud.launch(request("shaped", gang="g", interconnect="infiniband", **plain))
    cloud.list()
    cloud.leftovers()
    for _ in range(2):
        cloud.make_image("shaped", "spotd-shaped", {})
    cloud.images()
    wrong, arm.wrong = arm.wrong, []
    name = MODELS[kind][1]
    assert any(text.endswith(f"{name}.naem: {name} has no such field") for text in wrong)
