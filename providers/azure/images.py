"""Machine images: managed images, each made from a snapshot of a machine's boot disk.

Azure creates an image from a machine itself only when it is stopped and marked as generalized,
after which it never starts again, and a stopped Spot machine may be deleted with its disk. A
snapshot works on a disk in use, so the machine is not touched. Everything that belongs into the
image has to be on the disk before the call. That the image is generalized is spotd's claim:
docs/images.md lists what is removed. The snapshot stays with its image, because Azure does not
document that it can be deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from providers.azure.clients import Clients
from providers.azure.codes import NOT_FOUND
from providers.azure.listing import DEPLOYMENT_TAG, region_of, tags_of
from providers.base import ProviderError, RejectedError, parse_timestamp_us
from providers.images import NAME_TAG, Image, ImageState, check_name, name_taken

Row = Mapping[str, Any]
_FAILED = ("Failed", "Canceled")


class Images:
    """The images of one deployment in one resource group, each in the region of its machine. `find`
    looks up a machine."""

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

    def make_image(self, instance_id: str, name: str, tags: Mapping[str, str]) -> Image:
        """See ImageMaker.make_image. The first call starts the snapshot; a call that finds it
        complete starts the image."""
        check_name(name)
        row = self._get("images", name)
        if row is not None:
            return self._read(row)
        snapshot = self._get("snapshots", name)
        if snapshot is None:
            all_tags = {**tags, DEPLOYMENT_TAG: self._deployment, NAME_TAG: name}
            return self._begin_snapshot(instance_id, name, all_tags)
        snapshot_state = self._read(snapshot)
        if snapshot_state.state is ImageState.AVAILABLE:
            self._put("images", name, image_body(snapshot))
        return self._as_pending(snapshot_state)

    def images(self) -> list[Image]:
        """Return all images. A snapshot without an image is one in progress or abandoned. Raises
        ProviderError."""
        images = {image_.name: self._as_pending(image_) for image_ in self._list_own("snapshots")}
        images |= {image_.name: image_ for image_ in self._list_own("images")}
        return [*images.values()]

    def remove_image(self, image_id: str) -> None:
        """Delete the image and its snapshot, which has the same name and may have outlived the
        image."""
        name = image_id.rpartition("/")[2]
        if image_id.lower() != self._id(name).lower():
            return
        for kind in ("images", "snapshots"):
            if any(image_.name == name for image_ in self._list_own(kind)):
                self._delete(kind, name)

    def _begin_snapshot(self, instance_id: str, name: str, tags: Mapping[str, str]) -> Image:
        machine = self._find(instance_id)
        if machine is None:
            raise RejectedError(f"{instance_id} is gone, and no image can be made of it")
        body = snapshot_body(machine, tags)
        self._put("snapshots", name, body)
        return Image(self._id(name), name, ImageState.MAKING, body["location"], body["tags"])

    def _as_pending(self, snapshot: Image) -> Image:
        """Return a snapshot as an image, which is not available yet."""
        if snapshot.state is ImageState.FAILED:
            return snapshot
        return replace(snapshot, state=ImageState.MAKING)

    def _read(self, row: Row) -> Image:
        """Parse an image or a snapshot. Raises RejectedError for one of another deployment."""
        name, tags = str(row["name"]), tags_of(row)
        if tags.get(DEPLOYMENT_TAG) != self._deployment:
            raise name_taken(name, self._group)
        properties = row.get("properties") or {}
        provisioning_state = str(properties.get("provisioningState") or "")
        percent = properties.get("completionPercent")
        state = ImageState.MAKING
        if provisioning_state in _FAILED:
            state = ImageState.FAILED
        elif provisioning_state == "Succeeded" and percent in (None, 100):
            state = ImageState.AVAILABLE
        created_us = parse_timestamp_us(properties.get("timeCreated"))
        error = (
            f"{row.get('type') or name} is {provisioning_state}"
            if state is ImageState.FAILED
            else ""
        )
        disk = (properties.get("storageProfile") or {}).get("osDisk") or {}
        size = properties.get("diskSizeGB") or disk.get("diskSizeGB") or 0
        return Image(self._id(name), name, state, region_of(row), tags, created_us, error, size)

    def _list_own(self, kind: str) -> list[Image]:
        rows = self._clients.compute(
            lambda client: [
                resource.as_dict()
                for resource in getattr(client, kind).list_by_resource_group(self._group)
            ]
        )
        tagged = [row for row in rows if NAME_TAG in tags_of(row)]
        return [
            self._read(row)
            for row in tagged
            if tags_of(row).get(DEPLOYMENT_TAG) == self._deployment
        ]

    def _get(self, kind: str, name: str) -> Row | None:
        try:
            row: Row = self._clients.compute(
                lambda client: getattr(client, kind).get(self._group, name).as_dict()
            )
        except ProviderError as error:
            if error.code in NOT_FOUND:
                return None
            raise
        return row

    def _put(self, kind: str, name: str, body: dict[str, Any]) -> None:
        """Repeating the same body changes nothing."""
        self._clients.compute(
            lambda client: getattr(client, kind).begin_create_or_update(
                self._group, name, body, polling=False
            )
        )

    def _delete(self, kind: str, name: str) -> None:
        try:
            self._clients.compute(
                lambda client: getattr(client, kind).begin_delete(self._group, name, polling=False)
            )
        except ProviderError as error:
            if error.code not in NOT_FOUND:
                raise

    def _id(self, name: str) -> str:
        group = f"/subscriptions/{self._subscription_id}/resourceGroups/{self._group}"
        return f"{group}/providers/Microsoft.Compute/images/{name}"


def snapshot_body(machine: Row, tags: Mapping[str, str]) -> dict[str, Any]:
    """Return the body of a full, independent snapshot of a machine's disk."""
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


def image_body(snapshot: Row) -> dict[str, Any]:
    """Return the body of an image of a snapshot, with its tags. The generation must match: a
    machine of the first does not boot from a disk of the second."""
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
