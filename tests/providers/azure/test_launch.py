"""The body of the PUT on the wire, and its excerpt in docs/clouds/azure.md."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

import providers
from providers import cloud_init
from providers.azure.launch import RegionSetup, machine_body, machine_name, zone_name
from providers.base import CapacityType, Launched, RejectedError, UnpreparedError
from tests.clouds.azure.arm import SUBSCRIPTION, Request
from tests.clouds.azure.serving import StandIn
from tests.providers.azure.rig import provider, request

PAGE = Path(providers.__file__ or "").parent.parent / "docs/clouds/azure.md"
TOKEN = "spotd-j1-g1-c0-r0-abcdefghij"
IDENTITY = (
    f"/subscriptions/{SUBSCRIPTION}/resourceGroups/spotd"
    "/providers/Microsoft.ManagedIdentity/userAssignedIdentities/spotd-node-d0"
)
SITE = RegionSetup("s0", "spotd")


def shown(heading: str) -> tuple[str, Any]:
    """Return (first line, JSON body) of the example below a heading of the page."""
    section = PAGE.read_text().split(f"### {heading}\n")[1].split("\n### ")[0].split("\n## ")[0]
    line = re.search(r"^    ([A-Z]+ /\S+)$", section, re.MULTILINE)
    body = re.search(r"```json\n(.*?)```", section, re.DOTALL)
    assert line
    return line[1], json.loads(body[1]) if body else None


def on_the_wire(call: Request) -> str:
    query = "&".join(f"{key}={value}" for key, value in call.query.items())
    return f"{call.method} {call.path}?{query}"


def test_the_page_shows_what_goes_over_the_wire(azure: StandIn) -> None:
    azure.arm.identities.add(IDENTITY)
    cloud = provider(azure, resource_group="spotd", node_identity=IDENTITY)
    wanted = request(TOKEN, max_price_microusd_per_h=45_000_000)
    assert cloud.launch(wanted) == Launched(TOKEN)
    cloud.terminate(TOKEN)
    puts = [call for call in azure.arm.calls if call.method == "PUT"]
    assert len(puts) == 1
    profile = puts[0].body["properties"]["osProfile"]
    custom = base64.b64decode(profile["customData"]).decode()
    assert custom == cloud_init.user_data(wanted)
    line, body = shown("launch")
    assert line == on_the_wire(puts[0])
    assert body == json.loads(
        json.dumps(puts[0].body).replace(profile["customData"], "(cloud-init, base64)")
    )
    assert puts[0].headers["If-None-Match"] == "*"
    assert "If-None-Match: *" in PAGE.read_text()
    deletes = [call for call in azure.arm.calls if call.method == "DELETE"]
    assert [on_the_wire(call) for call in deletes] == [shown("terminate")[0]]


def test_the_same_request_is_the_same_bytes() -> None:
    def body(**changes: Any) -> str:
        wanted = request(TOKEN, **changes)
        return json.dumps(machine_body(wanted, wanted.tags, SITE, "x"))

    assert body() == body(tags=dict(reversed([*request(TOKEN).tags.items()])))


@pytest.mark.parametrize(
    ("changes", "site", "path", "value"),
    [
        ({"zone": "eastus-any"}, SITE, "zones", None),
        ({"zone": "eastus-3"}, SITE, "zones", ["3"]),
        ({}, SITE, "properties.billingProfile.maxPrice", -1.0),
        ({"max_price_microusd_per_h": 1}, SITE, "properties.billingProfile.maxPrice", 0.00001),
        # Never above the cap, in Azure's five decimals.
        (
            {"max_price_microusd_per_h": 29_123_459},
            SITE,
            "properties.billingProfile.maxPrice",
            29.12345,
        ),
        ({"capacity_type": CapacityType.ON_DEMAND}, SITE, "properties.priority", "Regular"),
        ({"capacity_type": CapacityType.ON_DEMAND}, SITE, "properties.evictionPolicy", None),
        ({"capacity_type": CapacityType.ON_DEMAND}, SITE, "properties.billingProfile", None),
        ({"disk_gib": 1000}, SITE, "properties.storageProfile.osDisk.diskSizeGB", 1000),
        ({"disk_gib": 1}, SITE, "properties.storageProfile.osDisk.diskSizeGB", 256),
        (
            {},
            RegionSetup("s0", "g", image="/subscriptions/s0/x/images/i"),
            "properties.storageProfile.imageReference",
            {"id": "/subscriptions/s0/x/images/i"},
        ),
        ({}, SITE, "identity", None),
        ({"token": "a_b.c"}, SITE, "properties.osProfile.computerName", "a-b-c"),
    ],
)
def test_parts(changes: dict[str, Any], site: RegionSetup, path: str, value: object) -> None:
    wanted = request(**{"token": TOKEN, **changes})
    result: Any = machine_body(wanted, wanted.tags, site, "x")
    for step in path.split("."):
        result = None if result is None else result.get(step)
    assert result == value


@pytest.mark.parametrize("network", ["private", "jump"])
def test_a_private_machine_has_no_address_of_the_internet(azure: StandIn, network: str) -> None:
    settings = {"resource_group": "spotd", "node_identity": IDENTITY}
    azure.arm.identities.add(IDENTITY)
    received = request(f"{network}-1", max_price_microusd_per_h=45_000_000)
    sent = []
    for kind in ("public", network):
        before = len(azure.arm.calls)
        cloud = provider(azure, network=kind, **settings)
        cloud.launch(received)
        sent.append(next(c.body for c in azure.arm.calls[before:] if c.method == "PUT"))
        cloud.terminate(received.token)
    public, body = sent
    assert "publicIP" not in json.dumps(body)
    cards = [
        item["properties"]["networkProfile"]["networkInterfaceConfigurations"][0]["properties"]
        for item in sent
    ]
    section = PAGE.read_text().split("### launch in a private network\n")[1].split("\n### ")[0]
    block = re.search(r"```json\n(.*?)```", section, re.DOTALL)
    assert block
    assert cards[1]["ipConfigurations"] == json.loads(block[1])
    del cards[0]["ipConfigurations"][0]["properties"]["publicIPAddressConfiguration"]
    assert public == body, "nothing else is different"


def test_all_that_is_made_goes_with_the_machine() -> None:
    body = json.dumps(machine_body(request(TOKEN), {}, SITE, "x"))
    assert re.findall('"deleteOption": "([^"]+)"', body) == ["Delete"] * 3


@pytest.mark.parametrize("token", ["x", "-ab", "ab-", "a/b", "a b", "a" * 65, ""])
def test_what_is_no_name(token: str) -> None:
    with pytest.raises(RejectedError, match="not a valid machine name"):
        machine_name(token)


def test_what_azure_has_no_words_for() -> None:
    with pytest.raises(RejectedError, match="block"):
        machine_body(request(TOKEN, capacity_type=CapacityType.BLOCK), {}, SITE, "x")
    with pytest.raises(UnpreparedError, match="is not an image"):
        machine_body(request(TOKEN), {}, SITE, "x", "ubuntu")


def test_names_of_zones() -> None:
    assert (zone_name("eastus", "2"), zone_name("eastus")) == ("eastus-2", "eastus-any")


@pytest.mark.parametrize("network", ["public", "private"])
def test_a_machine_is_reached_where_its_network_says(azure: StandIn, network: str) -> None:
    cloud = provider(azure, network=network)
    cloud.launch(request("reached"))
    host = cloud.list()[0].host
    assert host.startswith("192.0.2." if network == "public" else "10.7.")


@pytest.mark.parametrize("image", ["docker:nvcr.io/nvidia/pytorch:26.09", ""])
def test_a_container_runs_on_our_image(azure: StandIn, image: str) -> None:
    provider(azure).launch(request(f"image-{len(image)}", image_id=image))
    put = next(call for call in azure.arm.calls if call.method == "PUT")
    used = put.body["properties"]["storageProfile"]["imageReference"]
    assert used["publisher"] == "microsoft-dsvm"


@pytest.mark.parametrize("lacking", ["network", "identity", "image"])
def test_what_is_not_prepared_is_named(azure: StandIn, lacking: str) -> None:
    changes: dict[str, Any] = {}
    named = "virtualNetworks/spotd-eastus/subnets/nodes"
    if lacking == "network":
        azure.arm.networks = set()
    elif lacking == "identity":
        changes["node_identity"] = named = "/subscriptions/x/userAssignedIdentities/nobody"
    else:
        changes["image"], named = "a:b:c:d", "'a', 'b', 'c', 'd'"
    try:
        with pytest.raises(UnpreparedError, match=re.escape(named)):
            provider(azure, **changes).launch(request("lacks"))
    finally:
        azure.arm.networks = None
