"""The body of instances.insert, made of a request alone: the same request is the same bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from providers.base import CapacityType, LaunchRequest
from providers.gcp import fabric
from providers.gcp.notice import NOTICE_ATTRIBUTE

LEAST_DISK_GIB = 200  # drivers, a container and a copy of the code
NOTICE_S = 120  # between `preempted` and the end; the API takes 0 or 120
FLEX_START_S = 7 * 86_400  # the longest life that flex-start gives
WAITS_S = 7200  # how long flex-start may wait for a machine, at most; a job may give up before
SCOPE = "https://www.googleapis.com/auth/cloud-platform"  # what it may do, its role says
FIREWALL_TAG = "spotd"
RESERVATION_NAME = "compute.googleapis.com/reservation-name"
# Types that boot from no persistent disk.
_HYPERDISK = ("a3-ultragpu-*", "a4-*", "a4x-*")


@dataclass(frozen=True)
class ProjectSetup:
    """What a project has for our machines: `image` as a partial link, `subnetwork` by name in each
    region, `fabric`, what the names of those for GPUDirect begin with, whether machines get a
    `public` address, and the service `account` that they are."""

    project: str
    image: str
    subnetwork: str = "spotd"
    fabric: str = ""
    public: bool = True
    account: str = ""


def instance(
    request: LaunchRequest, labels: Mapping[str, str], site: ProjectSetup, user_data: str
) -> dict[str, Any]:
    """An Instance as it goes over the wire: one machine, whose disk has the same labels and goes
    with it."""
    zone = f"zones/{request.zone}"
    labels = dict(sorted(labels.items()))
    card: dict[str, Any] = {
        "subnetwork": f"projects/{site.project}/regions/{request.region}"
        f"/subnetworks/{site.subnetwork}"
    }
    if site.public:
        card["accessConfigs"] = [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}]
    more = fabric.cards(request, site.project, site.fabric)
    if more:
        card["nicType"] = "GVNIC"
    hyperdisk = any(fnmatchcase(request.instance_type, kind) for kind in _HYPERDISK)
    disk = {
        "sourceImage": site.image,
        "diskSizeGb": str(max(request.disk_gib, LEAST_DISK_GIB)),
        "diskType": f"{zone}/diskTypes/{'hyperdisk-balanced' if hyperdisk else 'pd-balanced'}",
        "labels": labels,
    }
    body: dict[str, Any] = {
        "name": request.name,
        "machineType": f"{zone}/machineTypes/{request.instance_type}",
        "labels": labels,
        "tags": {"items": [FIREWALL_TAG]},
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": disk}],
        "networkInterfaces": [card, *more],
        "scheduling": _scheduling(request),
        "metadata": {"items": [*_metadata(request, user_data)]},
    }
    if body["scheduling"]["provisioningModel"] == "FLEX_START":
        body["params"] = {"requestValidForDuration": {"seconds": str(WAITS_S)}}
    policy = fabric.policy_of(request)
    if policy:
        where = f"projects/{site.project}/regions/{request.region}"
        body["resourcePolicies"] = [f"{where}/resourcePolicies/{policy}"]
    if site.account:
        body["serviceAccounts"] = [{"email": site.account, "scopes": [SCOPE]}]
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
    """A machine that is taken, or has had its time, is deleted: a stopped one keeps its name and
    its disk, and bills it. None is restarted: its job has moved on by then."""
    model = _model(request)
    found: dict[str, Any] = {
        "provisioningModel": model,
        "onHostMaintenance": "TERMINATE",  # the one way for GPUs
        "automaticRestart": False,
    }
    life_s = request.max_run_s
    if model == "FLEX_START":
        life_s = min(life_s or FLEX_START_S, FLEX_START_S)
    if model == "SPOT":
        found["preemptionNoticeDuration"] = {"seconds": str(NOTICE_S)}
    if life_s:
        found["maxRunDuration"] = {"seconds": str(life_s)}
    if life_s or model != "STANDARD":
        found["instanceTerminationAction"] = "DELETE"
    return found


def _model(request: LaunchRequest) -> str:
    """A block is time that was booked (calendar mode) and ends with it, or waits for its turn
    (flex-start). A reservation of one's own is standard capacity."""
    if request.capacity_type is CapacityType.BLOCK:
        return "RESERVATION_BOUND" if request.reservation else "FLEX_START"
    return "SPOT" if request.capacity_type is CapacityType.SPOT else "STANDARD"


def _metadata(request: LaunchRequest, user_data: str) -> list[dict[str, str]]:
    """The machine is told how long its notice is, because nobody else tells it. OS Login would take
    the keys' place. The image's agent makes the host keys at the first boot and publishes them as
    guest attributes, where those are allowed."""
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
