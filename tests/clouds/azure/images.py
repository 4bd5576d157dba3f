"""Snapshots of disks, and images of snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tests.clouds.azure.machines import World
from tests.clouds.azure.refusals import error

SNAPSHOTS, IMAGES = "Microsoft.Compute/snapshots", "Microsoft.Compute/images"
KINDS = (SNAPSHOTS, IMAGES)
Row = dict[str, Any]
Answer = tuple[int, Any]


class Images:
    """`state` is the initial state of new ones: "Succeeded", or a transitional one."""

    def __init__(self) -> None:
        self.state = "Succeeded"

    def become(self, world: World, state: str) -> None:
        """Set the state of all."""
        for kind in KINDS:
            for row in _all(world, kind):
                row["properties"]["provisioningState"] = state

    def put(
        self, world: World, group: str, kind: str, name: str, body: Mapping[str, Any]
    ) -> Answer:
        """Return (status, body)."""
        try:
            made = self._made(world, group, kind, name, body)
            return (202 if kind == SNAPSHOTS else 201), made
        except ValueError as refused:
            return 400, error("InvalidParameter", str(refused))

    def _made(self, world: World, group: str, kind: str, name: str, body: Mapping[str, Any]) -> Row:
        """Raises ValueError for a body that Azure would refuse."""
        resource_id = world.name(group, kind, name)
        passed = body["properties"]
        if kind == SNAPSHOTS:
            source = passed["creationData"]["sourceResourceId"].lower()
            if source not in world.others:
                raise ValueError(f"{source} was not found.")
            more = {
                "osType": "Linux",
                "hyperVGeneration": "V2",
                "diskState": "Unattached",
                "diskSizeGB": world.others[source]["properties"]["diskSizeGB"],
                "timeCreated": datetime.now(UTC).isoformat(),
            }
        else:
            disk, more = passed["storageProfile"]["osDisk"], {}
            snapshot = world.others.get(disk["snapshot"]["id"].lower())
            if snapshot is None or snapshot["properties"]["provisioningState"] != "Succeeded":
                raise ValueError(f"{disk['snapshot']['id']} cannot be used.")
            if passed["hyperVGeneration"] != snapshot["properties"]["hyperVGeneration"]:
                raise ValueError("The generation is not that of the source.")
        reported = {"id": resource_id, "name": name, "type": kind, **body}
        reported["properties"] = {**passed, **more, "provisioningState": self.state}
        world.others[resource_id.lower()] = reported
        return reported


def _all(world: World, kind: str) -> list[Row]:
    return [row for row in world.others.values() if row.get("type") == kind]
