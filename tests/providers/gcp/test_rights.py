"""The control box's policy allows every call of the adapter, as the stand-in received it; the
reaper may make those that it needs, and a machine none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from providers.base import OfferRequest
from providers.gcp.policy import policies
from providers.iam.policy import PolicyFacts
from providers.readiness import need_of
from tests.clouds.gcp.gce import Call
from tests.clouds.gcp.market import REGIONS
from tests.fixtures.waiting import until
from tests.providers.evaluate import gcp_allows
from tests.providers.gcp.conftest import Lab, request

NODE = "spotd-node-d0@{}.iam.gserviceaccount.com"
FACTS = PolicyFacts("d0", REGIONS, "gs://ours/spotd", "gs://runs/team")
# Method -> what it needs of the project, and of what its path names.
OF_PROJECT = {
    "instances.aggregatedList": ("compute.instances.list",),
    "globalOperations.aggregatedList": (
        "compute.globalOperations.list",
        "compute.zoneOperations.list",
    ),
    "zoneOperations.get": ("compute.zoneOperations.get",),
    "machineTypes.aggregatedList": ("compute.machineTypes.list",),
    "disks.aggregatedList": ("compute.disks.list",),
    "resourcePolicies.aggregatedList": ("compute.resourcePolicies.list",),
    "images.list": ("compute.images.list",),
    "reservations.aggregatedList": ("compute.reservations.list",),
    "advice.capacityHistory": ("compute.advice.capacityHistory",),
    "advice.capacity": ("compute.advice.capacity",),
    "cloudbilling.services.skus.list": (),  # of a project none
    "cloudresourcemanager.projects.testIamPermissions": (),  # whoever asks about itself
    "cloudquotas.quotaInfos.get": ("cloudquotas.quotas.get",),
    "images.getFromFamily": ("compute.images.getFromFamily",),
    "images.get": ("compute.images.get",),
    "subnetworks.get": ("compute.subnetworks.get",),
    "firewalls.list": ("compute.firewalls.list",),
}
OF_THING = {
    "instances.get": "compute.instances.get",
    "instances.getGuestAttributes": "compute.instances.getGuestAttributes",
    "instances.getSerialPortOutput": "compute.instances.getSerialPortOutput",
    "instances.setLabels": "compute.instances.setLabels",
    "instances.simulateMaintenanceEvent": "compute.instances.simulateMaintenanceEvent",
    "instances.delete": "compute.instances.delete",
    "disks.delete": "compute.disks.delete",
    "images.delete": "compute.images.delete",
}
OF_POLICY = {"insert": "create", "get": "get", "delete": "delete"}

Need = tuple[str, str]  # permission, resource


def needs(call: Call) -> Iterator[Need]:
    """Return what Google requires of the caller's roles for one call, by its permission
    reference."""
    method, passed = call.method.removeprefix("compute."), call.given
    if method == "instances.insert":
        yield from insert_needs(call)
    elif method.startswith("resourcePolicies.") and method not in OF_PROJECT:
        name = passed.get("resourcePolicy") or call.body["name"]
        path = f"projects/{passed['project']}/regions/{passed['region']}/resourcePolicies/{name}"
        yield f"compute.resourcePolicies.{OF_POLICY[method.partition('.')[2]]}", path
    elif method == "images.insert":
        image = f"projects/{passed['project']}/global/images/{call.body['name']}"
        yield "compute.images.create", image
        yield "compute.images.setLabels", image
        yield "compute.disks.useReadOnly", call.body["sourceDisk"]
    elif method in OF_THING:
        kind = method.partition(".")[0]
        where = f"zones/{passed['zone']}" if "zone" in passed else "global"
        path = f"projects/{passed['project']}/{where}/{kind}/{passed[kind.removesuffix('s')]}"
        yield OF_THING[method], path
    else:
        for permission in OF_PROJECT[method]:
            yield permission, f"projects/{passed.get('project', '')}"


def insert_needs(call: Call) -> Iterator[Need]:
    """The permissions for a create: for the machine, its disk, and everything that it names."""
    body, passed = call.body, call.given
    project = f"projects/{passed['project']}"
    machine = f"{project}/zones/{passed['zone']}/instances/{body['name']}"
    disk = f"{project}/zones/{passed['zone']}/disks/{body['name']}"
    for field, right in {
        "name": "create",
        "labels": "setLabels",
        "metadata": "setMetadata",
        "tags": "setTags",
        "serviceAccounts": "setServiceAccount",
    }.items():
        if field in body:
            yield f"compute.instances.{right}", machine
    yield "compute.disks.create", disk
    if "labels" in body["disks"][0]["initializeParams"]:
        yield "compute.disks.setLabels", disk
    yield "compute.images.useReadOnly", body["disks"][0]["initializeParams"]["sourceImage"]
    for card in body["networkInterfaces"]:
        yield "compute.subnetworks.use", card["subnetwork"]
        if card.get("accessConfigs"):
            yield "compute.subnetworks.useExternalIp", card["subnetwork"]
    for link in body.get("resourcePolicies", ()):
        yield "compute.resourcePolicies.use", link
    for account in body.get("serviceAccounts", ()):
        yield "iam.serviceAccounts.actAs", f"{project}/serviceAccounts/{account['email']}"


@pytest.fixture
def story(lab: Lab) -> tuple[Lab, list[Call]]:
    """Use everything that the adapter does."""
    cloud = lab.cloud(
        node_service_account=NODE.format(lab.name), fabric="fast", reservations={"us-east4-a/x": 0}
    )
    lab.gce.machines.delay_s = 0.05
    needs = [need_of(offer) for offer in cloud.offers(OfferRequest(accelerator="H100"))]
    cloud.check_readiness(needs)
    lab.cloud(image=f"projects/{lab.name}/global/images/baked").check_readiness(())
    lab.gce.machines.subnetworks |= {f"fast-{n}" for n in range(1, 5)}
    cloud.launch(request("spotd-j1", gang="spotd-j1-g1", interconnect="gpudirect"))
    until(lambda: next((i for i in cloud.list() if i.host_public_key), None))
    cloud.read_serial_console("us-central1-a/spotd-j1")
    cloud.notices()
    cloud.renew("us-central1-a/spotd-j1", 1_900_000_000 * 1_000_000)
    image = cloud.make_image("us-central1-a/spotd-j1", "spotd-baked", {})
    cloud.images()
    cloud.remove_image(image.image_id)
    cloud.launch(request("spotd-j2"))
    cloud.interrupt("us-central1-a/spotd-j2")
    lab.fault("leftovers", "instances.delete")
    cloud.terminate("us-central1-a/spotd-j1")
    until(lambda: not cloud.list())
    for left in cloud.leftovers():
        cloud.discard(left.leftover_id)
    return lab, [*lab.gce.calls]


def documents(lab: Lab) -> dict[str, dict[str, object]]:
    return policies(replace(FACTS, account={"project": lab.name}))


def test_the_control_box_may_do_all_of_it(story: tuple[Lab, list[Call]]) -> None:
    lab, calls = story
    control = documents(lab)["spotd-control-d0"]
    received = {need for call in calls for need in needs(call)}
    refused = [need for need in received if not gcp_allows(control, *need)]
    assert refused == []


def test_and_is_granted_nothing_else(story: tuple[Lab, list[Call]]) -> None:
    lab, calls = story
    control = documents(lab)["spotd-control-d0"]
    granted = {
        right
        for grant in control["grants"]  # type: ignore[attr-defined]
        for right in grant["includedPermissions"]
        if not right.startswith("storage.")
    }
    assert granted == {permission for call in calls for permission, _ in needs(call)}


def test_the_reaper_may_list_and_end(story: tuple[Lab, list[Call]]) -> None:
    lab, calls = story
    reaper, node = (documents(lab)[f"spotd-{role}-d0"] for role in ("reaper", "node"))
    received = {need for call in calls for need in needs(call)}
    allowed = {permission for permission, name in received if gcp_allows(reaper, permission, name)}
    assert allowed == {
        "compute.instances.list",
        "compute.globalOperations.list",
        "compute.zoneOperations.list",
        "compute.instances.delete",
    }
    assert not any(gcp_allows(node, *need) for need in received)
