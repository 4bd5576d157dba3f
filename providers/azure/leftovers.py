"""What machines of ours left behind in the resource group: disks, cards and addresses that hang on
nothing, creates that failed (a machine's resource without a machine), and availability sets that no
machine is in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from providers.azure.clients import Clients
from providers.azure.codes import IN_USE, NOBODYS
from providers.azure.listing import (
    DEPLOYMENT_TAG,
    TOKEN_TAG,
    region_of,
    state_of,
    tags_of,
    us_of,
)
from providers.base import InstanceState, Leftover, LeftoverKind, ProviderError, RejectedError

Row = Mapping[str, Any]

# What Azure calls the disk of a machine that is made without a name for it (Azure's migration
# guide for managed disks in templates: VMNAME_OsDisk_1_RANDOM), here of one that a daemon named.
_OS_DISK = re.compile(r"(?P<token>spotd-.+)_OsDisk_1_[0-9a-f]+", re.IGNORECASE)

_DELETES: dict[str, tuple[str, str]] = {
    LeftoverKind.DISK.value: ("compute", "disks"),
    LeftoverKind.CARD.value: ("network", "network_interfaces"),
    LeftoverKind.ADDRESS.value: ("network", "public_ip_addresses"),
}


class Leftovers:
    """Of one deployment in one group. `machines` lists the machines with their instance views."""

    def __init__(
        self,
        clients: Clients,
        group: str,
        deployment: str,
        machines: Callable[[], list[tuple[Row, Row | None]]],
        find: Callable[[str], Row | None],
        delete: Callable[[str], str],
    ) -> None:
        self._clients = clients
        self._group = group
        self._deployment = deployment
        self._machines = machines
        self._find = find
        self._delete = delete

    def look(self) -> Iterator[Leftover]:
        """Raises ProviderError."""
        for row, view in self._machines():
            if self._ours(row) and state_of(row, view) is InstanceState.FAILED:
                yield _leftover(LeftoverKind.HUSK, row, (row.get("properties") or {}))
        for row in self._clients.compute(
            lambda c: [one.as_dict() for one in c.disks.list_by_resource_group(self._group)]
        ):
            properties = row.get("properties") or {}
            free = not row.get("managedBy") and properties.get("diskState") == "Unattached"
            marked = self._marked(row)
            if free and self._ours(marked):
                yield _leftover(LeftoverKind.DISK, marked, properties)
        for row in self._clients.network(
            lambda c: [one.as_dict() for one in c.network_interfaces.list(self._group)]
        ):
            properties = row.get("properties") or {}
            held = properties.get("virtualMachine") or properties.get("privateEndpoint")
            if not held and self._ours(row):
                yield _leftover(LeftoverKind.CARD, row, properties)
        for row in self._clients.network(
            lambda c: [one.as_dict() for one in c.public_ip_addresses.list(self._group)]
        ):
            properties = row.get("properties") or {}
            held = properties.get("ipConfiguration") or properties.get("natGateway")
            if not held and self._ours(row):
                yield _leftover(LeftoverKind.ADDRESS, row, properties)
        for row in self._clients.compute(
            lambda c: [one.as_dict() for one in c.availability_sets.list(self._group)]
        ):
            properties = row.get("properties") or {}
            if not properties.get("virtualMachines") and self._ours(row):
                yield _leftover(LeftoverKind.GROUP, row, properties)

    def discard(self, leftover_id: str) -> None:
        """Delete one. An unknown id is success; raises RejectedError for what is in use, and for a
        create that failed and is a machine by now."""
        kind, _, name = leftover_id.partition("/")
        if kind == LeftoverKind.HUSK.value and name:
            self._discard_husk(name)
        if kind not in (*_DELETES, LeftoverKind.GROUP.value) or not name:
            return
        try:
            self._delete_loose(kind, name)
        except ProviderError as error:
            if error.code in IN_USE:
                raise RejectedError(str(error), code=error.code) from None
            if error.code not in NOBODYS:
                raise

    def _delete_loose(self, kind: str, name: str) -> None:
        if kind == LeftoverKind.GROUP.value:
            self._clients.compute(lambda c: c.availability_sets.delete(self._group, name))
            return
        side, operations = _DELETES[kind]
        ask = self._clients.compute if side == "compute" else self._clients.network
        ask(lambda c: getattr(c, operations).begin_delete(self._group, name, polling=False))

    def _discard_husk(self, name: str) -> None:
        row = self._find(name)
        if row is None:
            return
        view = (row.get("properties") or {}).get("instanceView")
        state = state_of(row, view)
        if state is InstanceState.FAILED:
            self._delete(name)
        elif state is not InstanceState.STOPPING:
            raise RejectedError(f"{name} is a machine, and no create that failed")

    def _marked(self, row: Row) -> Row:
        """A disk, with the tags that its name stands for where it has none: Azure takes no tags for
        it in the request that makes it. The group is the deployment's own, and the record says
        whether it asked for that token."""
        found = _OS_DISK.fullmatch(str(row["name"]))
        if found is None or {DEPLOYMENT_TAG, TOKEN_TAG} & tags_of(row).keys():
            return row
        told = {DEPLOYMENT_TAG: self._deployment, TOKEN_TAG: found["token"].lower()}
        return {**row, "tags": {**tags_of(row), **told}}

    def _ours(self, row: Row) -> bool:
        return tags_of(row).get(DEPLOYMENT_TAG) == self._deployment


def _leftover(kind: LeftoverKind, row: Row, properties: Row) -> Leftover:
    since = properties.get("LastOwnershipUpdateTime") or properties.get("timeCreated")
    name = f"{kind.value}/{row['name']}"
    return Leftover(name, kind, tags_of(row), region_of(row), "", us_of(since))
