"""The listing: machines, creates without a machine, host keys; and the number of calls."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from providers.base import (
    AuthError,
    CapacityError,
    Instance,
    InstanceState,
    NoQuotaError,
    RejectedError,
    UnknownOutcome,
)
from providers.gcp.host_keys import read_host_key
from providers.gcp.listing import _STATES
from providers.gcp.names import target_of
from providers.gcp.operations import read_creates, request_id
from providers.gcp.preemptions import read_preemptions
from tests.clouds.gcp.discovery import api
from tests.clouds.gcp.machines import HOST_KEY
from tests.clouds.gcp.state import stamp
from tests.fixtures.later import Later
from tests.fixtures.waiting import until
from tests.providers.gcp.conftest import Lab, request

compute_v1: Any = Later("google.cloud.compute_v1")


def up(lab: Lab, name: str, deployment: str = "d0") -> Instance:
    """Return a running machine from the listing."""
    cloud = lab.cloud(deployment)
    cloud.launch(request(name))
    return until(lambda: next((i for i in cloud.list() if i.state is InstanceState.RUNNING), None))


def test_every_state_that_there_is_has_its_word() -> None:
    known = api("compute.v1")._schemas["Instance"]["properties"]["status"]["enum"]
    assert set(_STATES) == set(known)


def test_fifty_machines_are_two_calls(lab: Lab) -> None:
    cloud = lab.cloud()
    for number in range(50):
        lab.gce.machines.create(
            lab.project, "us-central1-a", _body(lab, f"spotd-{number}"), "", None, 0.0
        )
    until(lambda: {i.state for i in cloud.list()} == {InstanceState.RUNNING})
    cloud.list()
    lab.calls()
    assert len(cloud.list()) == 50
    assert Counter(lab.calls()) == {
        "globalOperations.aggregatedList": 1,
        "instances.aggregatedList": 1,
    }


def test_all_pages_are_read(lab: Lab) -> None:
    lab.gce.page = 7
    cloud = lab.cloud()
    for number in range(20):
        lab.gce.machines.create(
            lab.project, "us-central1-a", _body(lab, f"spotd-{number}"), "", None, 0.0
        )
    names = {f"us-central1-a/spotd-{number}" for number in range(20)}
    assert {machine.instance_id for machine in cloud.list()} == names


@pytest.mark.parametrize("verb", ["list", "leftovers", "notices"])
def test_a_zone_that_does_not_answer_is_an_error(lab: Lab, verb: str) -> None:
    ask = getattr(lab.cloud(), verb)
    ask()
    lab.gce.unreachable = {"us-east4-a"}
    with pytest.raises(UnknownOutcome, match="incomplete: UNREACHABLE"):
        ask()


def test_a_machine_of_another_deployment_is_not_listed(lab: Lab) -> None:
    up(lab, "spotd-theirs", "d1")
    assert lab.cloud("d0").list() == []


# --- host keys


def test_the_host_key_is_asked_for_once(lab: Lab) -> None:
    lab.gce.machines.boot_s = 600.0
    cloud = lab.cloud()
    cloud.launch(request("spotd-fresh"))
    assert [i.host_public_key for i in cloud.list()] == [""]
    assert "instances.getGuestAttributes" not in lab.calls()
    lab.project.finish_all()
    [result] = cloud.list()
    assert result.host_public_key == f"ssh-ed25519 {HOST_KEY}"
    assert lab.calls().count("instances.getGuestAttributes") == 1
    for _ in range(3):
        assert cloud.list()[0].host_public_key == result.host_public_key
    assert "instances.getGuestAttributes" not in lab.calls()


def test_a_key_that_is_not_published_yet_is_asked_for_again(lab: Lab) -> None:
    lab.gce.machines.publishes_keys = False
    machine = up(lab, "spotd-mute")
    assert machine.host_public_key == ""
    cloud = lab.cloud()
    lab.calls()
    assert [cloud.list()[0].host_public_key for _ in range(2)] == ["", ""]
    assert lab.calls().count("instances.getGuestAttributes") == 2
    lab.project.machines["us-central1-a", "spotd-mute"].guest = {"ssh-ed25519": HOST_KEY}
    assert cloud.list()[0].host_public_key == f"ssh-ed25519 {HOST_KEY}"


def test_an_old_machine_without_a_key_is_asked_once(lab: Lab) -> None:
    lab.gce.machines.publishes_keys = False
    up(lab, "spotd-old")
    row = lab.project.machines["us-central1-a", "spotd-old"].row
    row["creationTimestamp"] = "2026-01-01T00:00:00.000-08:00"
    cloud = lab.cloud()
    lab.calls()
    for _ in range(3):
        cloud.list()
    assert lab.calls().count("instances.getGuestAttributes") == 1


@pytest.mark.parametrize("what", ["http_500", "unauthorized", "garbage"])
def test_a_key_that_cannot_be_asked_for_costs_no_listing(
    lab: Lab, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    up(lab, "spotd-here")
    lab.fault(what, "instances.getGuestAttributes")
    cloud = lab.cloud()
    assert [i.host_public_key for i in cloud.list()] == [""]
    assert "cannot read the host keys of machines" in caplog.text
    assert [i.host_public_key for i in cloud.list()] == [f"ssh-ed25519 {HOST_KEY}"]


def test_the_best_key_is_pinned() -> None:
    def read(**keys: str) -> str:
        items = [
            {"namespace": "hostkeys", "key": k.replace("_", "-"), "value": v}
            for k, v in keys.items()
        ]
        answer = {"queryValue": {"items": items}}
        return read_host_key(compute_v1.GuestAttributes.from_json(json.dumps(answer)))

    assert read(ssh_rsa="R", ssh_ed25519="E") == "ssh-ed25519 E"
    assert read(ssh_rsa="R", ecdsa_sha2_nistp256="C") == "ecdsa-sha2-nistp256 C"
    assert read(ssh_dss="D") == ""


# --- creates that made no machine


@pytest.mark.parametrize(
    ("what", "kind"),
    [("fails_later", CapacityError), ("no_capacity", CapacityError), ("no_quota", NoQuotaError)],
)
def test_a_create_that_came_to_nothing_is_listed(lab: Lab, what: str, kind: type) -> None:
    lab.fault(what, "instances.insert", seconds=0.5)
    cloud = lab.cloud(patience_s=0.0)
    cloud.launch(request("spotd-husk"))
    husk = until(lambda: next((i for i in cloud.list() if i.error_code), None))
    assert husk.instance_id == "us-central1-a/spotd-husk"
    assert (husk.token, husk.state) == ("spotd-husk", InstanceState.FAILED)
    assert husk.error_code == kind.__name__
    assert husk.error
    assert (husk.region, husk.zone) == ("us-central1", "us-central1-a")
    cloud.terminate(husk.instance_id)
    assert lab.cloud("d1").list() == []  # nobody else's


def test_a_machine_that_was_made_after_all_is_no_husk(lab: Lab) -> None:
    cloud = lab.cloud()
    lab.gce.market.stock["a3-highgpu-8g", "us-central1-a"] = 0
    with pytest.raises(CapacityError):
        cloud.launch(request("spotd-second"))
    assert [i.state for i in cloud.list()] == [InstanceState.FAILED]
    lab.gce.market.stock.clear()
    cloud.launch(request("spotd-second"))
    assert [i.state for i in until(cloud.list)] != [InstanceState.FAILED]
    cloud.terminate("us-central1-a/spotd-second")
    until(lambda: cloud.list() == [])


def operation(**changes: Any) -> Any:
    """A create of the deployment, in progress."""
    link = (
        "https://compute.googleapis.com/compute/v1/projects/p/zones/us-east4-a/instances/spotd-j1"
    )
    row = {
        "operationType": "insert",
        "status": "RUNNING",
        "insertTime": "2026-11-22T09:00:00.000-08:00",
        "targetLink": link,
        "clientOperationId": request_id("d0", "spotd-j1"),
        **changes,
    }
    return compute_v1.Operation.from_json(json.dumps(row))


FAILED = {
    "status": "DONE",
    "error": {"errors": [{"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "none left"}]},
}
LATER = {"insertTime": "2026-11-22T09:01:00.000-08:00"}
SECOND = {"clientOperationId": request_id("d0", "spotd-j1", 1), **LATER}


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([], []),
        ([{}], [""]),
        ([FAILED], ["CapacityError"]),
        ([{"status": "DONE"}], []),
        ([FAILED | {"clientOperationId": "somebody"}], []),
        ([FAILED | {"clientOperationId": request_id("d1", "spotd-j1")}], []),
        ([FAILED | {"operationType": "delete"}], []),
        ([FAILED, SECOND], [""]),
        ([SECOND, FAILED], [""]),
        ([FAILED, SECOND | {"status": "DONE"}], []),
        ([{"status": "DONE"}, SECOND | FAILED], ["CapacityError"]),
        (
            [
                {
                    "status": "DONE",
                    "error": {"errors": [{"code": "RESOURCE_ALREADY_EXISTS", "message": "x"}]},
                }
            ],
            [],
        ),
    ],
)
def test_the_last_create_of_a_machine_counts(rows: list[dict[str, Any]], found: list[str]) -> None:
    creates = read_creates("d0", [operation(**row) for row in rows])
    assert [(create.error or ("", ""))[1] for create in creates] == found
    for create in creates:
        listed = create.to_instance("d0")
        assert listed.instance_id == "us-east4-a/spotd-j1"
        assert listed.token == "spotd-j1"
        assert listed.tags["spotd-deployment"] == "d0"
        assert listed.launched_at_us > 1_790_000_000_000_000


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("https://h/compute/v1/projects/p/zones/us-a/instances/n", "us-a/n"),
        ("https://h/compute/v1/projects/p/zones/us-a/disks/n", ""),
        ("https://h/compute/v1/projects/p/regions/us/instances/n", ""),
        ("n", ""),
        ("", ""),
    ],
)
def test_what_an_operation_works_on(link: str, target: str) -> None:
    assert target_of(link) == target


# --- notices


def test_a_preemption_is_told_to_whoever_asks_the_cloud(lab: Lab) -> None:
    machine = up(lab, "spotd-taken")
    cloud = lab.cloud()
    assert cloud.notices() == []
    lab.gce.preempt(lab.name, machine.instance_id)
    lab.calls()
    [notice] = cloud.notices()
    assert lab.calls() == ["globalOperations.aggregatedList"]
    assert notice.instance_id == machine.instance_id
    assert notice.notice_id == "gcp-preempted"  # what the machine itself calls it
    assert notice.deadline_us
    assert cloud.notices() == [notice]  # again, and it is the same one


def test_a_preemption_of_long_ago_is_not_told(lab: Lab) -> None:
    machine = up(lab, "spotd-gone")
    lab.gce.preempt(lab.name, machine.instance_id)
    for work in lab.project.works.values():
        work.row["insertTime"] = stamp(1_700_000_000.0)
    assert lab.cloud().notices() == []


def test_of_other_operations_no_notice_is_made() -> None:
    """Whatever the cloud makes of our filter."""
    kinds = ("insert", "delete", "compute.instances.hostError", "compute.instances.preempted")
    reported = read_preemptions(operation(operationType=kind) for kind in kinds)
    assert [notice.instance_id for notice in reported] == ["us-east4-a/spotd-j1"]
    disk = "https://h/compute/v1/projects/p/zones/us-a/disks/n"
    assert read_preemptions([operation(operationType=kinds[-1], targetLink=disk)]) == []


def test_a_delete_is_no_preemption(lab: Lab) -> None:
    machine = up(lab, "spotd-ended")
    lab.cloud().terminate(machine.instance_id)
    assert lab.cloud().notices() == []


# --- leftovers


def test_a_disk_in_use_is_never_taken(lab: Lab) -> None:
    up(lab, "spotd-used")
    cloud = lab.cloud()
    assert cloud.leftovers() == []
    with pytest.raises(RejectedError, match="already being used"):
        cloud.discard("us-central1-a/spotd-used")


def test_what_may_not_be_listed_is_an_error(lab: Lab) -> None:
    lab.fault("unauthorized", "globalOperations.aggregatedList")
    with pytest.raises(AuthError):
        lab.cloud().list()


def _body(lab: Lab, name: str) -> dict[str, Any]:
    from providers.gcp.launch import ProjectSetup, instance_body
    from tests.clouds.gcp.machines import IMAGE

    labels = {"spotd-deployment": "d0", "spotd-token": name}
    return instance_body(request(name), labels, ProjectSetup(lab.name, IMAGE), "#cloud-config")
