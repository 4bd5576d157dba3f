"""The stand-in's machines: creation, changes and deletion."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Mapping

from providers.local.documents import MachineFacts
from tests.clouds.fleet import Fleet
from tests.clouds.gcp.market import TYPES, ZONES, Market
from tests.clouds.gcp.replies import FAILURES, HttpError, Row, not_found
from tests.clouds.gcp.state import Key, Machine, Project, Work, fingerprint, number, stamp

IMAGE = (
    "projects/ubuntu-os-accelerator-images/global/images/family/"
    "ubuntu-accelerator-2404-amd64-with-nvidia-580"
)
LEAST_DISK_GB = 50
_LABEL = re.compile(r"[a-z0-9_-]{0,63}")
HOST_KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIKqYyZ0cV8S0d3bS0u1nM1hV0m8v3n1q8Yk5l3d2c1b0"

Failure = tuple[str, int, str]


class Machines:
    """`delay_s` is the duration of operations, `boot_s` the time until a machine runs and its host
    keys are published (a real one publishes them itself); `subnetworks` are the names in each
    region; `address` returns the next address that leads nowhere."""

    def __init__(self, market: Market, fleet: Fleet) -> None:
        self._market = market
        self.fleet = fleet
        self.delay_s = 0.02
        self.boot_s = 0.02
        self.publishes_keys = True
        self.subnetworks = {"spotd"}
        self.images = {IMAGE}
        self.host_key = HOST_KEY
        numbers = itertools.count(1)
        self.address: Callable[[], str] = lambda: f"198.51.100.{next(numbers) % 250 + 1}"

    def create(
        self,
        project: Project,
        zone: str,
        body: Row,
        request_id: str,
        failure: Failure | None,
        late_s: float,
    ) -> Work:
        """Accept a create, which ends in `failure` or as the market allows. Raises HttpError for
        one that is refused at once."""
        key = (zone, body["name"])
        self._check(project, zone, body)
        kind = body["machineType"].rpartition("/")[2]
        machine = Machine(self._row(project, zone, body))
        project.machines[key] = machine
        project.disks[key] = self._disk(project, zone, body)

        def finish() -> Failure | None:
            why = failure
            if why is None and not self._market.take(kind, zone):
                why = FAILURES["no_capacity"]
            if why is not None:
                project.remove(key)
            elif key in project.machines:
                self._rent(zone, machine)
                self._start(machine)
            return why

        return project.begin("insert", key, self.delay_s + late_s, finish, request_id=request_id)

    def find(self, project: Project, zone: str, name: str) -> Machine:
        """Raises HttpError when there is none."""
        machine = project.machines.get((zone, name))
        if machine is None:
            raise not_found(project.path(zone, "instances", name))
        self._boot(machine)
        return machine

    def delete(self, project: Project, key: Key, *, disk_too: bool) -> Work:
        """Power off at once and detach a disk that is to stay. Raises HttpError when there is
        none."""
        self.find(project, *key).row["status"] = "STOPPING"
        self.fleet.end(key[1])
        if not disk_too:
            project.let_go(key)

        def finish() -> Failure | None:
            project.remove(key, disk_too=disk_too)
            return None

        return project.begin("delete", key, self.delay_s, finish)

    def set_labels(self, project: Project, key: Key, body: Row) -> Work:
        """Raises HttpError unless the fingerprint is that of the current labels."""
        machine = self.find(project, *key)
        if body.get("labelFingerprint") != machine.row["labelFingerprint"]:
            raise HttpError(
                412, "conditionNotMet", "Supplied fingerprint does not match current labels."
            )
        _check_labels(body.get("labels", {}))
        machine.row |= {"labels": body.get("labels", {}), "labelFingerprint": fingerprint()}
        return project.begin("setLabels", key, self.delay_s, lambda: None)

    def add_label(self, project: Project, key: Key, name: str, value: str) -> None:
        """Add a label as somebody else would."""
        row = self.find(project, *key).row
        row |= {"labels": {**row["labels"], name: value}, "labelFingerprint": fingerprint()}

    def guest_attributes(self, project: Project, zone: str, name: str) -> dict[str, str]:
        """Return what the machine has published below hostkeys/. Raises HttpError when there is
        nothing."""
        machine = self.find(project, zone, name)
        allowed = {"key": "enable-guest-attributes", "value": "TRUE"}
        if allowed not in machine.row["metadata"]["items"] or not machine.guest:
            raise not_found("hostkeys/")
        return machine.guest

    def delete_disk(self, project: Project, key: Key) -> Work:
        """Raises HttpError for one that a machine uses."""
        path = project.path(key[0], "disks", key[1])
        if key not in project.disks:
            raise not_found(path)
        users = project.disks[key].get("users")
        if users:
            message = f"The disk resource '{path}' is already being used by '{users[0]}'"
            raise HttpError(400, "resourceInUseByAnotherResource", message)

        def finish() -> Failure | None:
            project.disks.pop(key, None)
            return None

        return project.begin("delete", key, 0.0, finish, collection="disks")

    def boot_all(self, project: Project) -> None:
        """Mark machines as running whose boot time is over."""
        for machine in project.machines.values():
            self._boot(machine)

    def _check(self, project: Project, zone: str, body: Row) -> None:
        if zone not in ZONES:
            message = f"Invalid value for field 'zone': '{zone}'. Unknown zone."
            raise HttpError(400, "invalid", message)
        kind, path = body["machineType"].rpartition("/")[2], body["machineType"]
        if kind not in TYPES or zone not in TYPES[kind][-1] or path.split("/")[1] != zone:
            message = f"Invalid value for field 'resource.machineType': '{path}'. "
            raise HttpError(400, "invalid", message + "The referenced resource does not exist.")
        disk = body["disks"][0]["initializeParams"]
        if disk["sourceImage"] not in self.images:
            raise not_found(disk["sourceImage"])
        if int(disk["diskSizeGb"]) < LEAST_DISK_GB:
            raise HttpError(400, "invalid", "Requested disk size cannot be smaller than the image")
        region = zone.rpartition("-")[0]
        known = {
            f"projects/{project.name}/regions/{region}/subnetworks/{name}"
            for name in self.subnetworks
        }
        for at, card in enumerate(body["networkInterfaces"]):
            if card["subnetwork"] not in known:
                message = (
                    f"Invalid value for field 'resource.networkInterfaces[{at}].subnetwork': "
                    f"'{card['subnetwork']}'. The referenced subnetwork resource cannot be found."
                )
                raise HttpError(400, "invalid", message)
        _check_labels(body.get("labels", {}))
        _check_scheduling(body["scheduling"])
        if (zone, body["name"]) in project.machines:
            path = project.path(zone, "instances", body["name"])
            raise HttpError(409, "alreadyExists", f"The resource '{path}' already exists")

    def _row(self, project: Project, zone: str, body: Row) -> Row:
        card = body["networkInterfaces"][0]
        public = [
            {**access, "kind": "compute#accessConfig", "natIP": self.address()}
            for access in card.get("accessConfigs", ())
        ]
        here = f"{project.host}/compute/v1/projects/{project.name}"
        row = {
            **body,
            "kind": "compute#instance",
            "id": number(),
            "status": "PROVISIONING",
            "creationTimestamp": stamp(),
            "zone": f"{here}/zones/{zone}",
            "machineType": f"{here}/{body['machineType']}",
            "selfLink": project.link(zone, "instances", body["name"]),
            "labelFingerprint": fingerprint(),
            "networkInterfaces": [
                {**card, "name": "nic0", "networkIP": "10.0.0.2", "accessConfigs": public},
                *body["networkInterfaces"][1:],
            ],
            "disks": [
                {
                    "boot": True,
                    "autoDelete": True,
                    "deviceName": "persistent-disk-0",
                    "index": 0,
                    "mode": "READ_WRITE",
                    "type": "PERSISTENT",
                    "source": project.link(zone, "disks", body["name"]),
                }
            ],
        }
        row["scheduling"]["preemptible"] = row["scheduling"]["provisioningModel"] == "SPOT"
        return row

    def _disk(self, project: Project, zone: str, body: Row) -> Row:
        received = body["disks"][0]["initializeParams"]
        return {
            "kind": "compute#disk",
            "id": number(),
            "name": body["name"],
            "labels": received.get("labels", {}),
            "sizeGb": received["diskSizeGb"],
            "status": "READY",
            "creationTimestamp": stamp(),
            "zone": f"{project.host}/compute/v1/projects/{project.name}/zones/{zone}",
            "selfLink": project.link(zone, "disks", body["name"]),
            "users": [project.link(zone, "instances", body["name"])],
        }

    def _rent(self, zone: str, machine: Machine) -> None:
        """Start the machine behind it; return its addresses, private and (if requested) public.
        Names are unique in a zone; here everywhere."""
        row = machine.row
        name, kind = row["name"], row["machineType"].rpartition("/")[2]
        spot = row["scheduling"]["provisioningModel"] == "SPOT"
        facts = MachineFacts(name, "gcp", name, zone.rpartition("-")[0], zone, kind, spot)
        passed = {item["key"]: item["value"] for item in row["metadata"]["items"]}

        def hear(event: Mapping[str, object]) -> None:
            if event.get("event") == "guest_attribute" and event["namespace"] == "hostkeys":
                machine.guest = {**machine.guest, str(event["key"]): str(event["value"])}

        address = self.fleet.rent(
            facts,
            f"{zone}/{name}",
            row.get("labels", {}).get("spotd-token", name),
            passed.pop("user-data", ""),
            accounts=_accounts(passed.get("ssh-keys", "")),
            attributes=passed,
            off=lambda: self._switched_off(machine),
            hear=hear,
        )
        if self.fleet.real:
            card = row["networkInterfaces"][0]
            card["networkIP"] = address
            for access in card["accessConfigs"]:
                access["natIP"] = address

    def _switched_off(self, machine: Machine) -> None:
        """Power off from inside: the machine stays until it is deleted, and only its disk is
        billed."""
        machine.row |= {"status": "TERMINATED"}
        self.fleet.end(machine.row["name"])

    def _start(self, machine: Machine) -> None:
        now_s = time.monotonic()
        machine.up_s = now_s + self.boot_s
        machine.row["status"] = "STAGING"
        life = machine.row["scheduling"].get("maxRunDuration")
        if life is not None:
            machine.ends_s = now_s + int(life["seconds"])
        self._boot(machine)

    def _boot(self, machine: Machine) -> None:
        if machine.row["status"] == "STAGING" and time.monotonic() >= machine.up_s:
            machine.row |= {"status": "RUNNING", "lastStartTimestamp": stamp()}
            if self.publishes_keys and not self.fleet.real:
                rsa = "AAAAB3NzaC1yc2EAAAADAQABAAABgQ"
                machine.guest = {"ssh-rsa": rsa, "ssh-ed25519": self.host_key}


def _accounts(keys: str) -> dict[str, str]:
    """Parse `ssh-keys`: "USER:KEY" a line."""
    rows = (line.partition(":") for line in keys.splitlines() if ":" in line)
    return {user: key for user, _, key in rows}


def _check_labels(labels: dict[str, str]) -> None:
    for key, value in labels.items():
        if not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", key) or not _LABEL.fullmatch(value):
            message = f"Invalid value for field 'resource.labels': '{key}={value}'."
            raise HttpError(400, "invalid", message)


def _check_scheduling(asked: Row) -> None:
    """Check combinations that the API refuses."""
    model, life = asked["provisioningModel"], "maxRunDuration" in asked
    wrong = {
        "preemptionNoticeDuration": model != "SPOT" and "preemptionNoticeDuration" in asked,
        "instanceTerminationAction": (
            model == "STANDARD" and not life and "instanceTerminationAction" in asked
        ),
        "maxRunDuration": model == "FLEX_START" and not life,
        "automaticRestart": model != "STANDARD" and asked.get("automaticRestart", True),
        "onHostMaintenance": asked.get("onHostMaintenance") != "TERMINATE",
    }
    for name, bad in wrong.items():
        if bad:
            message = f"Invalid value for field 'resource.scheduling.{name}'"
            raise HttpError(400, "invalid", message)
