"""The stand-in's machines and their resources, with Azure's life cycle: created and deleted by
operations; a failed create stays until it is deleted.

Behind each machine is one of a fleet: a real machine, which counts as created when it reports
ready, or an address that leads nowhere.
"""

from __future__ import annotations

import base64
import itertools
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from providers.local.documents import MachineFacts
from tests.clouds.fleet import Fleet, now_us
from tests.clouds.machines import nowhere

NOTICE_S = 30.0  # the least between a Preempt event and its end
Row = dict[str, Any]
_numbers = itertools.count(1)
_NOWHERE = nowhere()  # of creates that fail: an address, and no machine


@dataclass
class Operation:
    """Ends at `until_s` (monotonic) with `error`, or without one."""

    ident: str
    machine: str
    until_s: float
    error: Row | None = None
    ends: bool = False  # it deletes the machine
    told: bool = False  # what it comes to has happened


@dataclass
class Machine:
    """`row` is Azure's description; `linked` are the ids of resources created with it."""

    row: Row
    power: str = ""
    error: Row | None = None
    linked: dict[str, str] = field(default_factory=dict)  # id -> deleteOption
    version: int = 1
    console: str = ""  # what it wrote to its serial port

    def state(self) -> str:
        return str(self.row["properties"]["provisioningState"])

    def become(self, state: str) -> None:
        self.row["properties"]["provisioningState"] = state
        self.version += 1
        self.row["etag"] = f'"{self.version}"'

    def view(self) -> Row:
        """Return its instance view: a failed create has a reason and never had power."""
        now = _now()
        code, level, message = f"ProvisioningState/{self.state().lower()}", "Info", ""
        if self.error is not None:
            code = f"ProvisioningState/failed/{self.error['code']}"
            level, message = "Error", self.error["message"]
        reported = {"code": code, "level": level, "displayStatus": "Provisioning", "time": now}
        statuses = [reported | ({"message": message} if message else {})]
        if self.power:
            power = {"code": f"PowerState/{self.power}", "level": "Info"}
            statuses.append(power | {"displayStatus": f"VM {self.power}"})
        return {"statuses": statuses}


class World:
    """All resources of one subscription, by lower-case id; use under `lock`, except `evict`."""

    def __init__(self, subscription: str, fleet: Fleet, lock: threading.RLock) -> None:
        self.subscription = subscription
        self.fleet = fleet
        self._lock = lock
        self.machines: dict[str, Machine] = {}
        self.others: dict[str, Row] = {}
        self.operations: dict[str, Operation] = {}
        self.delete_s = 0.0

    def name(self, group: str, kind: str, name: str) -> str:
        """Return a resource id; `kind` as in "Microsoft.Compute/disks"."""
        return f"/subscriptions/{self.subscription}/resourceGroups/{group}/providers/{kind}/{name}"

    def create(self, group: str, name: str, body: Row, takes_s: float, error: Row | None) -> Row:
        """Start to create a machine, with its interface, address and disk."""
        resource_id = self.name(group, "Microsoft.Compute/virtualMachines", name)
        machine = Machine(_made(resource_id, name, body))
        real = self.fleet.real and error is None
        address = self._rent(machine, body) if error is None else ""
        for config in body["properties"]["networkProfile"]["networkInterfaceConfigurations"]:
            self._link_card(group, resource_id, config, body, machine, address)
        self._link_disk(group, resource_id, name, body, machine)
        self.machines[resource_id.lower()] = machine
        self.begin(resource_id, float("inf") if real else takes_s, error)
        return machine.row

    def _rent(self, machine: Machine, body: Row) -> str:
        """Start the machine behind it; return its address."""
        row, received, name = machine.row, body["properties"], machine.row["name"]
        profile, spot = received["osProfile"], received.get("priority") == "Spot"
        zone, kind = next(iter(body.get("zones", ())), ""), received["hardwareProfile"]["vmSize"]
        keys = profile["linuxConfiguration"]["ssh"]["publicKeys"]

        def hear(event: Mapping[str, object]) -> None:
            if event.get("event") == "ready":
                for operation in [*self.operations.values()]:
                    if operation.machine == row["id"] and not operation.ends:
                        operation.until_s = 0.0
            elif event.get("event") == "acknowledged":
                self._evicted(machine)

        def off() -> None:
            machine.power = "stopped"  # and paid for, until it is deleted

        return self.fleet.rent(
            MachineFacts(name, "azure", name, body["location"], zone, kind, spot),
            name,
            str((body.get("tags") or {}).get("spotd-token", name)),
            base64.b64decode(profile.get("customData", "")).decode(),
            accounts={profile["adminUsername"]: keys[0]["keyData"]},
            attributes={"vm_id": row["properties"]["vmId"], "host_name": profile["computerName"]},
            off=off,
            hear=hear,
        )

    def evict(self, ident: str, left_s: float = NOTICE_S) -> None:
        """Preempt a Spot machine: publish it in its Scheduled Events, and delete it after `left_s`
        or when it agrees. Without a real machine this happens at once."""
        with self._lock:
            machine = self.machines[ident.lower()]
        if not self.fleet.real:
            self._evicted(machine)
            return
        end_us = now_us() + int(left_s * 1e6)
        self.fleet.take(machine.row["name"], end_us, lambda: self._evicted(machine))

    def _evicted(self, machine: Machine) -> None:
        resource_id = machine.row["id"]
        with self._lock:
            if self.machines.get(resource_id.lower()) is machine and machine.state() != "Deleting":
                machine.become("Deleting")
                self.begin(resource_id, self.delete_s, ends=True)

    def begin(
        self, ident: str, takes_s: float, error: Row | None = None, ends: bool = False
    ) -> Operation:
        """Start an operation on a machine; one that is to end powers off at once."""
        if ends:
            self.fleet.end(self.machines[ident.lower()].row["name"])
        operation = Operation(str(uuid.uuid4()), ident, time.monotonic() + takes_s, error, ends)
        self.operations[operation.ident] = operation
        self.settle()
        return operation

    def settle(self) -> None:
        """Apply operations that are due."""
        for operation in [*self.operations.values()]:
            if operation.told or time.monotonic() < operation.until_s:
                continue
            operation.told = True
            machine = self.machines.get(operation.machine.lower())
            if machine is None:
                continue
            if operation.ends:
                self.remove(operation.machine)
            elif machine.state() == "Creating":
                machine.error = operation.error
                machine.become("Failed" if operation.error else "Succeeded")
                machine.power = "" if operation.error else "running"

    def remove(self, ident: str, spare: bool = False) -> None:
        """Remove a machine and, unless spared, the resources that are deleted with it."""
        machine = self.machines.pop(ident.lower())
        self.fleet.end(machine.row["name"])
        for linked, option in machine.linked.items():
            if option == "Delete" and not spare:
                self.others.pop(linked.lower(), None)
            elif linked.lower() in self.others:
                _detach(self.others[linked.lower()])

    def listed(self, group: str, kind: str) -> list[Row]:
        """Return the resources of a kind in a group, machines included."""
        prefix = self.name(group, kind, "").lower()
        machines = [m.row for key, m in self.machines.items() if key.startswith(prefix)]
        return machines + [row for key, row in self.others.items() if key.startswith(prefix)]

    def _link_card(
        self, group: str, ident: str, config: Row, body: Row, machine: Machine, address: str
    ) -> None:
        # Azure adds to the names of what it makes by itself: nobody may count on them.
        card = f"{config['name']}-{next(_numbers):08x}"
        number = next(_numbers)
        inner = f"10.7.{number // 250 % 250}.{number % 250 + 4}"
        host = address or next(_NOWHERE)
        card_id = self.name(group, "Microsoft.Network/networkInterfaces", card)
        ip = config["properties"]["ipConfigurations"][0]
        where = {
            "id": f"{card_id}/ipConfigurations/{ip['name']}",
            "name": ip["name"],
            "properties": {
                "primary": True,
                "privateIPAddress": host if self.fleet.real else inner,
                "privateIPAllocationMethod": "Dynamic",
                "subnet": {"id": ip["properties"]["subnet"]["id"]},
            },
        }
        wanted = ip["properties"].get("publicIPAddressConfiguration")
        if wanted:
            named = f"{wanted['name']}-{next(_numbers):08x}"
            address_id = self.name(group, "Microsoft.Network/publicIPAddresses", named)
            where["properties"]["publicIPAddress"] = {"id": address_id}
            self._add(
                machine,
                address_id,
                wanted["properties"].get("deleteOption", "Detach"),
                {
                    "name": named,
                    "location": body["location"],
                    "tags": dict(wanted.get("tags") or {}),
                    "sku": dict(wanted["sku"]),
                    "properties": {
                        "ipAddress": host,
                        "publicIPAllocationMethod": "Static",
                        "ipConfiguration": {"id": where["id"]},
                        "provisioningState": "Succeeded",
                    },
                },
            )
        self._add(
            machine,
            card_id,
            config["properties"].get("deleteOption", "Detach"),
            {
                "name": card,
                "location": body["location"],
                "tags": dict(config.get("tags") or {}),
                "properties": {
                    "primary": True,
                    "virtualMachine": {"id": ident},
                    "ipConfigurations": [where],
                    "provisioningState": "Succeeded",
                },
            },
        )
        machine.row["properties"]["networkProfile"] = {
            "networkInterfaces": [
                {"id": card_id, "properties": {"primary": True, "deleteOption": "Delete"}}
            ]
        }

    def _link_disk(self, group: str, ident: str, name: str, body: Row, machine: Machine) -> None:
        disk = machine.row["properties"]["storageProfile"]["osDisk"]
        disk["name"] = f"{name}_OsDisk_1_{next(_numbers):032x}"
        disk_id = self.name(group, "Microsoft.Compute/disks", disk["name"])
        disk["managedDisk"] = {**disk["managedDisk"], "id": disk_id}
        disk["osType"] = "Linux"
        self._add(
            machine,
            disk_id,
            disk.get("deleteOption", "Detach"),
            {
                "name": disk["name"],
                "location": body["location"],
                "tags": dict(body.get("tags") or {}),
                "managedBy": ident,
                "properties": {
                    "diskState": "Attached",
                    "diskSizeGB": disk["diskSizeGB"],
                    "timeCreated": _now(),
                    "creationData": {"createOption": "FromImage"},
                    "provisioningState": "Succeeded",
                },
            },
        )

    def _add(self, machine: Machine, ident: str, option: str, row: Row) -> None:
        self.others[ident.lower()] = {"id": ident, **row}
        machine.linked[ident] = option


def _made(ident: str, name: str, body: Row) -> Row:
    """Return Azure's description of a machine created with `body`."""
    received = {k: v for k, v in body["properties"].items() if k != "networkProfile"}
    profile = {k: v for k, v in received["osProfile"].items() if k != "customData"}
    storage = {**received["storageProfile"], "osDisk": dict(received["storageProfile"]["osDisk"])}
    row = {
        "id": ident,
        "name": name,
        "type": "Microsoft.Compute/virtualMachines",
        "location": body["location"],
        "etag": '"1"',
        "properties": {
            **received,
            "osProfile": {**profile, "secrets": [], "allowExtensionOperations": True},
            "storageProfile": {**storage, "dataDisks": []},
            "provisioningState": "Creating",
            "vmId": str(uuid.uuid4()),
            "timeCreated": _now(),
        },
    }
    stored: Mapping[str, Any] = {k: body[k] for k in ("tags", "zones") if k in body}
    return row | dict(stored)


def _detach(row: Row) -> None:
    row.pop("managedBy", None)
    for key in ("virtualMachine", "ipConfiguration"):
        row["properties"].pop(key, None)
    if "diskState" in row["properties"]:
        row["properties"]["diskState"] = "Unattached"
        row["properties"]["LastOwnershipUpdateTime"] = _now()


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "0Z"
