"""Images of machines: managed images, each made of a snapshot of the disk that a machine started
from.

Azure makes an image of a machine itself only once it is off and marked as generalized, after which
it never starts again; a Spot machine that is to be off may be deleted with its disk. A snapshot is
taken of a disk in use, and the image of that: the machine is not touched. What the image is to have
is on the disk when the call comes. That it is generalized is ours to say: see docs/images.md for
what was taken off. The snapshot stays with its image, because nothing says that one may go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from providers.azure.clients import Clients
from providers.azure.codes import NOBODYS
from providers.azure.listing import DEPLOYMENT_TAG, region_of, tags_of, us_of
from providers.base import ProviderError, RejectedError
from providers.images import NAME_TAG, Image, ImageState, check_name, not_ours

Row = Mapping[str, Any]
_FAILED = ("Failed", "Canceled")


class Images:
    """Those of one deployment in one resource group, each in the region of its machine. `find`
    finds a machine."""

    def __init__(
        self,
        clients: Clients,
        subscription_id: str,
        group: str,
        deployment: str,
        find: Callable[[str], Row | None],
    ) -> None:
        self._clients = clients
        self._subscription_id = subscription_id
        self._group = group
        self._deployment = deployment
        self._find = find

    def make(self, instance_id: str, name: str, tags: Mapping[str, str]) -> Image:
        """See ImageMaker.make_image. One call begins the snapshot, one that finds it done the
        image."""
        check_name(name)
        row = self._get("images", name)
        if row is not None:
            return self._read(row)
        snapshot = self._get("snapshots", name)
        if snapshot is None:
            marks = {**tags, DEPLOYMENT_TAG: self._deployment, NAME_TAG: name}
            return self._begin(instance_id, name, marks)
        found = self._read(snapshot)
        if found.state is ImageState.AVAILABLE:
            self._put("images", name, image(snapshot))
        return self._making(found)

    def all(self) -> list[Image]:
        """Raises ProviderError. A snapshot of ours without an image is one that is being made, or
        was left at that."""
        found = {one.name: self._making(one) for one in self._ours("snapshots")}
        found |= {one.name: one for one in self._ours("images")}
        return [*found.values()]

    def remove(self, image_id: str) -> None:
        """The image and its snapshot, which is found by the same name when the image has gone."""
        name = image_id.rpartition("/")[2]
        if image_id.lower() != self._id(name).lower():
            return
        for kind in ("images", "snapshots"):
            if any(one.name == name for one in self._ours(kind)):
                self._delete(kind, name)

    def _begin(self, instance_id: str, name: str, tags: Mapping[str, str]) -> Image:
        machine = self._find(instance_id)
        if machine is None:
            raise RejectedError(f"{instance_id} is gone, and no image can be made of it")
        body = snapshot_of(machine, tags)
        self._put("snapshots", name, body)
        return Image(self._id(name), name, ImageState.MAKING, body["location"], body["tags"])

    def _making(self, snapshot: Image) -> Image:
        """What a snapshot is as an image: not there yet, at best."""
        if snapshot.state is ImageState.FAILED:
            return snapshot
        return replace(snapshot, state=ImageState.MAKING)

    def _read(self, row: Row) -> Image:
        """An image, or a snapshot. Raises RejectedError for one of somebody else."""
        name, tags = str(row["name"]), tags_of(row)
        if tags.get(DEPLOYMENT_TAG) != self._deployment:
            raise not_ours(name, self._group)
        properties = row.get("properties") or {}
        told = str(properties.get("provisioningState") or "")
        percent = properties.get("completionPercent")
        state = ImageState.MAKING
        if told in _FAILED:
            state = ImageState.FAILED
        elif told == "Succeeded" and percent in (None, 100):
            state = ImageState.AVAILABLE
        made_us = us_of(properties.get("timeCreated"))
        error = f"{row.get('type') or name} is {told}" if state is ImageState.FAILED else ""
        disk = (properties.get("storageProfile") or {}).get("osDisk") or {}
        size = properties.get("diskSizeGB") or disk.get("diskSizeGB") or 0
        return Image(self._id(name), name, state, region_of(row), tags, made_us, error, size)

    def _ours(self, kind: str) -> list[Image]:
        rows = self._clients.compute(
            lambda c: [
                one.as_dict() for one in getattr(c, kind).list_by_resource_group(self._group)
            ]
        )
        marked = [row for row in rows if NAME_TAG in tags_of(row)]
        return [
            self._read(row)
            for row in marked
            if tags_of(row).get(DEPLOYMENT_TAG) == self._deployment
        ]

    def _get(self, kind: str, name: str) -> Row | None:
        try:
            row: Row = self._clients.compute(
                lambda c: getattr(c, kind).get(self._group, name).as_dict()
            )
        except ProviderError as error:
            if error.code in NOBODYS:
                return None
            raise
        return row

    def _put(self, kind: str, name: str, body: dict[str, Any]) -> None:
        """The same body a second time changes nothing."""
        self._clients.compute(
            lambda c: getattr(c, kind).begin_create_or_update(
                self._group, name, body, polling=False
            )
        )

    def _delete(self, kind: str, name: str) -> None:
        try:
            self._clients.compute(
                lambda c: getattr(c, kind).begin_delete(self._group, name, polling=False)
            )
        except ProviderError as error:
            if error.code not in NOBODYS:
                raise

    def _id(self, name: str) -> str:
        group = f"/subscriptions/{self._subscription_id}/resourceGroups/{self._group}"
        return f"{group}/providers/Microsoft.Compute/images/{name}"


def snapshot_of(machine: Row, tags: Mapping[str, str]) -> dict[str, Any]:
    """The body of a snapshot of a machine's disk: a whole one, which needs no other."""
    disk = machine["properties"]["storageProfile"]["osDisk"]["managedDisk"]["id"]
    return {
        "location": machine["location"],
        "tags": dict(sorted(tags.items())),
        "sku": {"name": "Standard_LRS"},
        "properties": {
            "creationData": {"createOption": "Copy", "sourceResourceId": disk},
            "incremental": False,
        },
    }


def image(snapshot: Row) -> dict[str, Any]:
    """The body of an image of a snapshot, with its tags. Of a disk of the second generation a
    machine of the first does not boot."""
    properties = snapshot["properties"]
    return {
        "location": snapshot["location"],
        "tags": dict(sorted(tags_of(snapshot).items())),
        "properties": {
            "hyperVGeneration": properties.get("hyperVGeneration") or "V2",
            "storageProfile": {
                "osDisk": {
                    "osType": "Linux",
                    "osState": "Generalized",
                    "snapshot": {"id": snapshot["id"]},
                }
            },
        },
    }
