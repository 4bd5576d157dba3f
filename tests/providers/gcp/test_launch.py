"""The launch request, and its outcomes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from providers import cloud_init
from providers.base import (
    EXPIRES_TAG,
    AuthError,
    CapacityError,
    CapacityType,
    InstanceState,
    Launched,
    LaunchRequest,
    Pending,
    PriceError,
    RejectedError,
    UnknownOutcome,
    UnpreparedError,
)
from providers.gcp.launch import FLEX_START_S, ProjectSetup, instance_body
from providers.gcp.operations import ATTEMPTS, request_id
from tests.fixtures.waiting import until
from tests.providers.gcp.conftest import Lab, request

SITE = ProjectSetup("lab", "projects/i/global/images/one")


def body(**changes: Any) -> dict[str, Any]:
    received = request("spotd-j1", **changes)
    return instance_body(received, dict(received.tags), SITE, "#cloud-config")


# --- the body


@pytest.mark.parametrize(
    ("capacity", "changes", "scheduling", "affinity"),
    [
        (
            CapacityType.SPOT,
            {},
            {
                "provisioningModel": "SPOT",
                "instanceTerminationAction": "DELETE",
                "preemptionNoticeDuration": {"seconds": "120"},
            },
            None,
        ),
        (
            CapacityType.SPOT,
            {"max_run_s": 604800},
            {
                "provisioningModel": "SPOT",
                "instanceTerminationAction": "DELETE",
                "preemptionNoticeDuration": {"seconds": "120"},
                "maxRunDuration": {"seconds": "604800"},
            },
            None,
        ),
        (CapacityType.ON_DEMAND, {}, {"provisioningModel": "STANDARD"}, None),
        (
            CapacityType.ON_DEMAND,
            {"max_run_s": 604800},
            {
                "provisioningModel": "STANDARD",
                "instanceTerminationAction": "DELETE",
                "maxRunDuration": {"seconds": "604800"},
            },
            None,
        ),
        (
            CapacityType.RESERVED,
            {"reservation": "ours"},
            {"provisioningModel": "STANDARD"},
            ["ours"],
        ),
        (
            CapacityType.BLOCK,
            {"reservation": "may"},
            {"provisioningModel": "RESERVATION_BOUND", "instanceTerminationAction": "DELETE"},
            ["may"],
        ),
        (
            CapacityType.BLOCK,
            {"max_run_s": 2 * FLEX_START_S},
            {
                "provisioningModel": "FLEX_START",
                "instanceTerminationAction": "DELETE",
                "maxRunDuration": {"seconds": str(FLEX_START_S)},
            },
            "none",
        ),
        (
            CapacityType.BLOCK,
            {},
            {
                "provisioningModel": "FLEX_START",
                "instanceTerminationAction": "DELETE",
                "maxRunDuration": {"seconds": str(FLEX_START_S)},
            },
            "none",
        ),
    ],
)
def test_capacity_types(
    capacity: CapacityType,
    changes: dict[str, Any],
    scheduling: dict[str, Any],
    affinity: list[str] | str | None,
    lab: Lab,
) -> None:
    made = body(capacity_type=capacity, **changes)
    always = {"onHostMaintenance": "TERMINATE", "automaticRestart": False}
    assert made["scheduling"] == scheduling | always
    wanted: dict[str, Any] | None = None
    if affinity == "none":
        wanted = {"consumeReservationType": "NO_RESERVATION"}
    elif affinity:
        wanted = {
            "consumeReservationType": "SPECIFIC_RESERVATION",
            "key": "compute.googleapis.com/reservation-name",
            "values": affinity,
        }
    assert made.get("reservationAffinity") == wanted
    # It is what the cloud takes, and lists as what was asked for.
    cloud = lab.cloud()
    cloud.launch(request("spotd-j1", capacity_type=capacity, **changes))
    assert [machine.capacity_type for machine in cloud.list()] == [capacity]


@pytest.mark.parametrize(
    ("kind", "disk"),
    [
        ("a3-highgpu-8g", "pd-balanced"),
        ("g2-standard-4", "pd-balanced"),
        ("a3-ultragpu-8g", "hyperdisk-balanced"),
        ("a4-highgpu-8g", "hyperdisk-balanced"),
    ],
)
def test_a_type_boots_from_a_disk_that_it_takes(kind: str, disk: str) -> None:
    params = body(instance_type=kind)["disks"][0]["initializeParams"]
    assert params["diskType"] == f"zones/us-central1-a/diskTypes/{disk}"


def test_a_private_machine_has_no_address_of_the_internet(lab: Lab) -> None:
    for network, host in (("public", "198.51.100."), ("private", "10."), ("jump", "10.")):
        cloud = lab.cloud(network=network)
        cloud.launch(request(f"spotd-{network}"))
        result = until(
            lambda cloud=cloud, network=network: next(  # type: ignore[misc]
                (i for i in cloud.list() if i.token.endswith(network) and i.host), None
            )
        )
        assert result.host.startswith(host)


def test_a_disk_as_large_as_asked_for_and_with_the_labels_of_its_machine() -> None:
    disk = body(disk_gib=900)["disks"][0]
    assert disk["autoDelete"] is True
    assert disk["initializeParams"]["diskSizeGb"] == "900"
    assert disk["initializeParams"]["labels"] == body()["labels"]


def test_a_container_runs_on_the_providers_own_image(lab: Lab) -> None:
    cloud = lab.cloud()
    own = "projects/lab/global/images/baked"
    lab.gce.machines.images.add(own)
    for name, image in (("spotd-a", "docker:nvcr.io/x"), ("spotd-b", own), ("spotd-c", "")):
        cloud.launch(request(name, image_id=image))
    images = [
        call.body["disks"][0]["initializeParams"]["sourceImage"]
        for call in lab.gce.calls
        if call.method == "compute.instances.insert"
    ]
    assert images[1] == own
    assert images[0] == images[2] != own


def test_user_data_brings_no_host_key(lab: Lab) -> None:
    """The image's agent generates one at first boot, and publishes it."""
    received = request("spotd-j1")
    lab.cloud().launch(received)
    insert = next(c for c in lab.gce.calls if c.method == "compute.instances.insert")
    metadata = {item["key"]: item["value"] for item in insert.body["metadata"]["items"]}
    assert metadata["user-data"] == cloud_init.user_data(received, host_key=False)
    assert metadata["ssh-keys"] == f"spotd:{received.ssh_public_key.strip()}"
    assert metadata["enable-guest-attributes"] == "TRUE"
    assert "PRIVATE KEY" not in str(insert.body)


# --- what is refused before it is asked for


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "Spotd-J1"},
        {"name": "1-spotd"},
        {"name": "spotd_j1"},
        {"name": "spotd-"},
        {"name": "s" * 64},
        {"tags": {"spotd-job": "Job 1"}},
        {"tags": {"spotd-job": "j" * 64}},
        {"tags": {"Spotd-job": "j1"}},
        {"tags": {f"k{n}": "v" for n in range(70)}},
    ],
)
def test_what_google_cloud_has_no_name_for_is_rejected(lab: Lab, changes: dict[str, Any]) -> None:
    with pytest.raises(RejectedError):
        lab.cloud().launch(dataclasses.replace(request("spotd-j1"), **changes))
    assert lab.calls() == []


# --- what a launch comes to


def test_a_slow_operation_is_pending_and_then_listed(lab: Lab) -> None:
    lab.gce.machines.delay_s = 600.0
    cloud = lab.cloud(patience_s=0.2)
    answer = cloud.launch(request("spotd-slow"))
    assert isinstance(answer, Pending)
    assert answer.operation.startswith("us-central1-a/operation-")
    assert [i.state for i in cloud.list()] == [InstanceState.PENDING]
    lab.project.finish_all()
    assert [i.state for i in cloud.list()] == [InstanceState.RUNNING]


@pytest.mark.parametrize("what", ["http_500", "garbage", "unauthorized", "lost_reply"])
def test_an_operation_that_cannot_be_looked_at_is_pending(lab: Lab, what: str) -> None:
    lab.gce.machines.delay_s = 0.3
    lab.fault(what, "zoneOperations.get")
    assert isinstance(lab.cloud().launch(request("spotd-blind")), Pending)


def test_the_answer_to_a_create_that_failed_before_is_not_the_answer_to_this_one(lab: Lab) -> None:
    cloud = lab.cloud()
    lab.gce.market.stock["a3-highgpu-8g", "us-central1-a"] = 0
    for _ in range(2):
        with pytest.raises(CapacityError):
            cloud.launch(request("spotd-again"))
    lab.gce.market.stock.clear()
    assert isinstance(cloud.launch(request("spotd-again")), Launched)
    lab.project.finish_all()
    assert [i.state for i in cloud.list()] == [InstanceState.RUNNING]


def test_after_so_many_attempts_the_last_answer_stands(lab: Lab) -> None:
    cloud = lab.cloud()
    lab.gce.market.stock["a3-highgpu-8g", "us-central1-a"] = 0
    for _ in range(ATTEMPTS + 1):
        with pytest.raises(CapacityError):
            cloud.launch(request("spotd-never"))
    inserts = [c.given["requestId"] for c in lab.gce.calls if c.method.endswith(".insert")]
    assert len(set(inserts)) == ATTEMPTS
    assert set(inserts) == {request_id("d0", "spotd-never", n) for n in range(ATTEMPTS)}


def test_a_name_that_is_taken_by_the_same_machine(lab: Lab) -> None:
    """The cloud has forgotten the request, but not the machine."""
    cloud, received = lab.cloud(), request("spotd-mine")
    first = cloud.launch(received)
    lab.project.requests.clear()
    assert cloud.launch(received) == first
    cloud.renew(first.instance_id, 1_900_000_000 * 1_000_000)  # type: ignore[union-attr]
    assert cloud.launch(received) == first
    for other in ({"tags": {"spotd-job": "j2"}}, {"instance_type": "g2-standard-4"}):
        with pytest.raises(RejectedError, match="has a machine spotd-mine already"):
            cloud.launch(dataclasses.replace(received, **other))  # type: ignore[arg-type]
    assert len(cloud.list()) == 1


def test_another_deployments_machine_of_that_name_is_not_ours(lab: Lab) -> None:
    received = request("spotd-theirs")
    lab.cloud("d1").launch(received)
    with pytest.raises(RejectedError):
        lab.cloud("d0").launch(received)


def test_a_place_without_what_machines_need(lab: Lab) -> None:
    cloud = lab.cloud()
    lab.gce.machines.subnetworks = set()
    with pytest.raises(UnpreparedError, match="subnetwork"):
        cloud.launch(request("spotd-a"))
    lab.gce.machines.subnetworks = {"spotd"}
    with pytest.raises(UnpreparedError, match="gone"):
        cloud.launch(request("spotd-b", image_id="projects/lab/global/images/gone"))
    with pytest.raises(UnpreparedError, match="mars-a"):
        cloud.launch(request("spotd-c", region="mars", zone="mars-a"))


def test_the_cap_is_kept_by_us(lab: Lab) -> None:
    lab.gce.market.history["a3-highgpu-8g", "us-central1"] = 21.5
    cloud = lab.cloud()
    with pytest.raises(PriceError, match=r"is \$21\.50 an hour; \$21\.40 are allowed"):
        cloud.launch(request("spotd-dear", max_price_microusd_per_h=21_400_000))
    assert "instances.insert" not in lab.calls()
    assert cloud.launch(request("spotd-cheap", max_price_microusd_per_h=21_500_000))


def test_a_price_that_rises_takes_no_machine_back(lab: Lab) -> None:
    lab.gce.market.history["a3-highgpu-8g", "us-central1"] = 21.5
    received = request("spotd-was-cheap", max_price_microusd_per_h=22_000_000)
    first = lab.cloud().launch(received)
    lab.gce.market.history["a3-highgpu-8g", "us-central1"] = 30.0
    assert lab.cloud().launch(received) == first


def test_request_ids_tell_deployments_tokens_and_attempts_apart() -> None:
    same = {request_id("d0", "t"), request_id("d0", "t", 0)}
    others = {request_id("d1", "t"), request_id("d0", "u"), request_id("d0", "t", 1)}
    assert len(same) == 1
    assert len(same | others) == 4


# --- ends


def test_what_has_no_id_of_ours_is_asked_of_nobody(lab: Lab) -> None:
    cloud = lab.cloud()
    for name in ("", "spotd-j1", "us-central1-a/", "us-central1-a/Odd Name", "a/b/c"):
        cloud.terminate(name)
        cloud.renew(name, 1)
        cloud.discard(name)
    assert lab.calls() == []


def test_a_project_that_is_not_there_is_no_success(lab: Lab) -> None:
    lab.gce.faults.clear()
    lab.fault("unauthorized", "instances.delete")
    with pytest.raises(AuthError):
        lab.cloud().terminate("us-central1-a/spotd-j1")


def test_labels_that_somebody_changed_meanwhile_are_read_again(lab: Lab) -> None:
    cloud = lab.cloud()
    made = cloud.launch(_expiring("spotd-race", 1_900_000_000))
    assert isinstance(made, Launched)
    lab.fault("raced", "instances.setLabels")
    cloud.renew(made.instance_id, 1_900_003_600 * 1_000_000)
    labels = cloud.list()[0].tags
    assert (labels[EXPIRES_TAG], labels["by"]) == ("1900003600", "somebody")
    for _ in range(2):
        lab.fault("raced", "instances.setLabels")
    with pytest.raises(UnknownOutcome):  # twice in a row: the daemon asks again
        cloud.renew(made.instance_id, 1_900_007_200 * 1_000_000)
    assert cloud.list()[0].tags[EXPIRES_TAG] == "1900003600"


def _expiring(name: str, until_s: int) -> LaunchRequest:
    received = request(name)
    return dataclasses.replace(received, tags={**received.tags, EXPIRES_TAG: str(until_s)})
