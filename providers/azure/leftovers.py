"""Resources that outlived their machines in the resource group: unattached disks, interfaces and
addresses, failed creates (a resource without a machine), and empty availability sets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from providers.azure.clients import Clients
from providers.azure.codes import IN_USE, NOT_FOUND
from providers.azure.listing import DEPLOYMENT_TAG, TOKEN_TAG, region_of, state_of, tags_of
from providers.base import (
    InstanceState,
    Leftover,
    LeftoverKind,
    ProviderError,
    RejectedError,
    parse_timestamp_us,
)

Row = Mapping[str, Any]

# Azure's default name for a machine's disk (migration guide for managed disks in templates:
# VMNAME_OsDisk_1_RANDOM), for a machine that a daemon named.
_OS_DISK = re.compile(r"(?P<token>spotd-.+)_OsDisk_1_[0-9a-f]+", re.IGNORECASE)

_DELETES: dict[str, tuple[str, str]] = {
    LeftoverKind.DISK.value: ("compute", "disks"),
    LeftoverKind.NETWORK_INTERFACE.value: ("network", "network_interfaces"),
    LeftoverKind.ADDRESS.value: ("network", "public_ip_addresses"),
}


class Leftovers:
    """The leftovers of one deployment in one group. `machines` lists the machines with their
    instance views."""

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

    def list_all(self) -> Iterator[Leftover]:
        """Yield all leftovers. Raises ProviderError."""
        for row, view in self._machines():
            if self._is_own(row) and state_of(row, view) is InstanceState.FAILED:
                yield _leftover(LeftoverKind.FAILED_CREATE, row, (row.get("properties") or {}))
        for row in self._clients.compute(
            lambda client: [
                resource.as_dict() for resource in client.disks.list_by_resource_group(self._group)
            ]
        ):
            properties = row.get("properties") or {}
            unattached = not row.get("managedBy") and properties.get("diskState") == "Unattached"
            tagged = self._with_tags(row)
            if unattached and self._is_own(tagged):
                yield _leftover(LeftoverKind.DISK, tagged, properties)
        for row in self._clients.network(
            lambda client: [
                resource.as_dict() for resource in client.network_interfaces.list(self._group)
            ]
        ):
            properties = row.get("properties") or {}
            attached = properties.get("virtualMachine") or properties.get("privateEndpoint")
            if not attached and self._is_own(row):
                yield _leftover(LeftoverKind.NETWORK_INTERFACE, row, properties)
        for row in self._clients.network(
            lambda client: [
                resource.as_dict() for resource in client.public_ip_addresses.list(self._group)
            ]
        ):
            properties = row.get("properties") or {}
            attached = properties.get("ipConfiguration") or properties.get("natGateway")
            if not attached and self._is_own(row):
                yield _leftover(LeftoverKind.ADDRESS, row, properties)
        for row in self._clients.compute(
            lambda client: [
                resource.as_dict() for resource in client.availability_sets.list(self._group)
            ]
        ):
            properties = row.get("properties") or {}
            if not properties.get("virtualMachines") and self._is_own(row):
                yield _leftover(LeftoverKind.GROUP, row, properties)

    def discard(self, leftover_id: str) -> None:
        """Delete a leftover. An unknown id is success; raises RejectedError for one in use, and for
        a failed create that is a machine by now."""
        kind, _, name = leftover_id.partition("/")
        if kind == LeftoverKind.FAILED_CREATE.value and name:
            self._discard_failed_create(name)
        if kind not in (*_DELETES, LeftoverKind.GROUP.value) or not name:
            return
        try:
            self._delete_resource(kind, name)
        except ProviderError as error:
            if error.code in IN_USE:
                raise RejectedError(str(error), code=error.code) from None
            if error.code not in NOT_FOUND:
                raise

    def _delete_resource(self, kind: str, name: str) -> None:
        if kind == LeftoverKind.GROUP.value:
            self._clients.compute(lambda client: client.availability_sets.delete(self._group, name))
            return
        api, operations = _DELETES[kind]
        call = self._clients.compute if api == "compute" else self._clients.network
        call(
            lambda client: getattr(client, operations).begin_delete(
                self._group, name, polling=False
            )
        )

    def _discard_failed_create(self, name: str) -> None:
        row = self._find(name)
        if row is None:
            return
        view = (row.get("properties") or {}).get("instanceView")
        state = state_of(row, view)
        if state is InstanceState.FAILED:
            self._delete(name)
        elif state is not InstanceState.STOPPING:
            raise RejectedError(f"{name} is a running machine, not a failed create")

    def _with_tags(self, row: Row) -> Row:
        """Return a disk with tags derived from its name where it has none: Azure accepts no disk
        tags in the request that creates it.

        The group is the deployment's own, and spotd's record tells whether it requested that token.
        """
        match = _OS_DISK.fullmatch(str(row["name"]))
        if match is None or {DEPLOYMENT_TAG, TOKEN_TAG} & tags_of(row).keys():
            return row
        tags = {DEPLOYMENT_TAG: self._deployment, TOKEN_TAG: match["token"].lower()}
        return {**row, "tags": {**tags_of(row), **tags}}

    def _is_own(self, row: Row) -> bool:
        return tags_of(row).get(DEPLOYMENT_TAG) == self._deployment


def _leftover(kind: LeftoverKind, row: Row, properties: Row) -> Leftover:
    since = properties.get("LastOwnershipUpdateTime") or properties.get("timeCreated")
    name = f"{kind.value}/{row['name']}"
    return Leftover(name, kind, tags_of(row), region_of(row), "", parse_timestamp_us(since))
