"""The body of instances.insert, derived from the request alone: equal requests give equal bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from providers.base import CapacityType, LaunchRequest
from providers.gcp import fabric
from providers.gcp.notice import NOTICE_ATTRIBUTE

MIN_DISK_GIB = 200  # drivers, a container and a copy of the code
NOTICE_S = 120  # between `preempted` and the end; the API accepts 0 or 120
FLEX_START_S = 7 * 86_400  # maximum run time with flex-start
FLEX_START_WAIT_S = 7200  # maximum wait for flex-start capacity
SCOPE = "https://www.googleapis.com/auth/cloud-platform"  # the role limits it
FIREWALL_TAG = "spotd"
RESERVATION_NAME = "compute.googleapis.com/reservation-name"
# Types that cannot boot from a persistent disk.
_HYPERDISK = ("a3-ultragpu-*", "a4-*", "a4x-*")


@dataclass(frozen=True)
class ProjectSetup:
    """The prerequisites of our machines in a project.

    `image` is a partial link, `subnetwork` the subnetwork's name in each region, `fabric` the name
    prefix of GPUDirect subnetworks, `public` whether machines get a public address, and `account`
    their service account.
    """

    project: str
    image: str
    subnetwork: str = "spotd"
    fabric: str = ""
    public: bool = True
    account: str = ""


def instance_body(
    request: LaunchRequest, labels: Mapping[str, str], project_setup: ProjectSetup, user_data: str
) -> dict[str, Any]:
    """Return an Instance in JSON form: one machine, whose disk has the same labels and is deleted
    with it."""
    zone = f"zones/{request.zone}"
    labels = dict(sorted(labels.items()))
    card: dict[str, Any] = {
        "subnetwork": f"projects/{project_setup.project}/regions/{request.region}"
        f"/subnetworks/{project_setup.subnetwork}"
    }
    if project_setup.public:
        card["accessConfigs"] = [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}]
    extra_cards = fabric.extra_cards(request, project_setup.project, project_setup.fabric)
    if extra_cards:
        card["nicType"] = "GVNIC"
    hyperdisk = any(fnmatchcase(request.instance_type, kind) for kind in _HYPERDISK)
    disk = {
        "sourceImage": project_setup.image,
        "diskSizeGb": str(max(request.disk_gib, MIN_DISK_GIB)),
        "diskType": f"{zone}/diskTypes/{'hyperdisk-balanced' if hyperdisk else 'pd-balanced'}",
        "labels": labels,
    }
    body: dict[str, Any] = {
        "name": request.name,
        "machineType": f"{zone}/machineTypes/{request.instance_type}",
        "labels": labels,
        "tags": {"items": [FIREWALL_TAG]},
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": disk}],
        "networkInterfaces": [card, *extra_cards],
        "scheduling": _scheduling(request),
        "metadata": {"items": [*_metadata(request, user_data)]},
    }
    if body["scheduling"]["provisioningModel"] == "FLEX_START":
        body["params"] = {"requestValidForDuration": {"seconds": str(FLEX_START_WAIT_S)}}
    policy = fabric.policy_of(request)
    if policy:
        region_path = f"projects/{project_setup.project}/regions/{request.region}"
        body["resourcePolicies"] = [f"{region_path}/resourcePolicies/{policy}"]
    if project_setup.account:
        body["serviceAccounts"] = [{"email": project_setup.account, "scopes": [SCOPE]}]
    if request.reservation:
        body["reservationAffinity"] = {
            "consumeReservationType": "SPECIFIC_RESERVATION",
            "key": RESERVATION_NAME,
            "values": [request.reservation],
        }
    elif request.capacity_type is CapacityType.BLOCK:
        body["reservationAffinity"] = {"consumeReservationType": "NO_RESERVATION"}
    return body


def _scheduling(request: LaunchRequest) -> dict[str, Any]:
    """Have a preempted or expired machine deleted: a stopped one would keep its name and its billed
    disk. No machine restarts automatically: its job has moved on by then."""
    model = _model(request)
    scheduling: dict[str, Any] = {
        "provisioningModel": model,
        "onHostMaintenance": "TERMINATE",  # the only option with GPUs
        "automaticRestart": False,
    }
    life_s = request.max_run_s
    if model == "FLEX_START":
        life_s = min(life_s or FLEX_START_S, FLEX_START_S)
    if model == "SPOT":
        scheduling["preemptionNoticeDuration"] = {"seconds": str(NOTICE_S)}
    if life_s:
        scheduling["maxRunDuration"] = {"seconds": str(life_s)}
    if life_s or model != "STANDARD":
        scheduling["instanceTerminationAction"] = "DELETE"
    return scheduling


def _model(request: LaunchRequest) -> str:
    """Return the provisioning model. A block is reserved time (calendar mode), which ends with the
    reservation, or waits for capacity (flex-start). An own reservation is standard capacity."""
    if request.capacity_type is CapacityType.BLOCK:
        return "RESERVATION_BOUND" if request.reservation else "FLEX_START"
    return "SPOT" if request.capacity_type is CapacityType.SPOT else "STANDARD"


def _metadata(request: LaunchRequest, user_data: str) -> list[dict[str, str]]:
    """Return the metadata items.

    The notice time is included because no metadata key reports it. OS Login is off, because it
    would disable SSH keys. The guest agent generates host keys at the first boot and publishes them
    as guest attributes if these are enabled.
    """
    user, key = request.ssh_user, request.ssh_public_key.strip()
    items = {
        **({NOTICE_ATTRIBUTE: str(NOTICE_S)} if _model(request) == "SPOT" else {}),
        "block-project-ssh-keys": "TRUE",
        "enable-guest-attributes": "TRUE",
        "enable-oslogin": "FALSE",
        "ssh-keys": f"{user}:{key}",
        "user-data": user_data,
    }
    return [{"key": name, "value": value} for name, value in items.items()]
