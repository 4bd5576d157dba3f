"""Machine images: of the boot disk of a running machine.

`forceCreate` accepts a disk in use. It is read as it is at the call, so everything that belongs
into the image has to be on the disk before. A Compute Engine "machine image" would contain the
machine's metadata, keys included; an image of the disk does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from providers.base import ProviderError, RejectedError, UnpreparedError, parse_timestamp_us
from providers.gcp.clients import Clients
from providers.gcp.codes import EXISTS, NOT_FOUND, is_not_found, operation_error
from providers.gcp.names import (
    DEPLOYMENT_TAG,
    label_filter,
    labels_of,
    link_name,
    region_of,
    split_name,
)
from providers.gcp.operations import is_done, request_id
from providers.images import NAME_TAG, Image, ImageState, check_name, name_taken

_STATES = {
    "READY": ImageState.AVAILABLE,
    "PENDING": ImageState.MAKING,
    "UNDEFINED_STATUS": ImageState.MAKING,
}


class Images:
    """The images of one deployment in one project, usable in all zones."""

    def __init__(self, clients: Clients, deployment: str) -> None:
        self._clients = clients
        self._deployment = deployment

    def make_image(self, instance_id: str, name: str, tags: Mapping[str, str]) -> Image:
        """See ImageMaker.make_image. The image is stored in the machine's region."""
        check_name(name)
        existing = self._find_by_name(name)
        if existing is not None:
            return existing
        zone, machine = split_name(instance_id)
        row = self._get("Instances", zone=zone, instance=machine) if zone else None
        if row is None:
            raise RejectedError(f"{instance_id} is gone, and no image can be made of it")
        labels = labels_of({**tags, DEPLOYMENT_TAG: self._deployment, NAME_TAG: name})
        disk = next(link_name(disk.source) for disk in row.disks if disk.boot)
        body = image_body(self._clients.project, zone, disk, name, labels)
        pending = Image(self._id(name), name, ImageState.MAKING, "", labels)
        request_id_ = request_id(self._deployment, f"{name}\n{instance_id}")
        try:
            operation = self._clients.insert_image(body, request_id_)
            error = operation_error(operation) if is_done(operation) else None
        except ProviderError as refusal:
            if refusal.code not in EXISTS:
                raise
            error = refusal
        if error is None:
            return pending
        if error.code in EXISTS:  # by an earlier call whose answer was lost
            return self._find_by_name(name) or pending
        # Repeating the request would repeat the answer, so this is final for machine and name.
        return Image(pending.image_id, name, ImageState.FAILED, "", labels, error=str(error))

    def images(self) -> list[Image]:
        """Return all images of the deployment. Raises ProviderError."""
        rows = self._clients.list_filtered("Images", label_filter(self._deployment))
        return [self._read(row) for row in rows]

    def remove_image(self, image_id: str) -> None:
        """Delete an image; it has no snapshots."""
        name = link_name(image_id)
        if image_id != self._id(name):
            return
        row = self._get("Images", image=name)
        if row is None or row.labels.get(DEPLOYMENT_TAG) != self._deployment:
            return
        try:
            self._clients.call("Images", "delete_unary", image=name)
        except ProviderError as error:
            if not _is_missing(error):
                raise

    def _find_by_name(self, name: str) -> Image | None:
        """Raises RejectedError for an image of another deployment."""
        row = self._get("Images", image=name)
        if row is None:
            return None
        if row.labels.get(DEPLOYMENT_TAG) != self._deployment:
            raise name_taken(name, self._clients.project)
        return self._read(row)

    def _get(self, collection: str, **fields: Any) -> Any:
        try:
            return self._clients.call(collection, "get", **fields)
        except ProviderError as error:
            if not _is_missing(error):
                raise
            return None

    def _read(self, row: Any) -> Image:
        state = _STATES.get(str(row.status), ImageState.FAILED)
        return Image(
            image_id=self._id(row.name),
            name=row.name,
            state=state,
            region="",
            tags=dict(row.labels),
            made_at_us=parse_timestamp_us(row.creation_timestamp),
            error=f"its status is {row.status}" if state is ImageState.FAILED else "",
            size_gib=int(row.disk_size_gb or 0),
        )

    def _id(self, name: str) -> str:
        return f"projects/{self._clients.project}/global/images/{name}"


def _is_missing(error: ProviderError) -> bool:
    """Whether a resource is missing. A missing image has the code of a missing prerequisite; a
    missing project does not count."""
    return is_not_found(error) or (error.code in NOT_FOUND and isinstance(error, UnpreparedError))


def image_body(
    project: str, zone: str, disk: str, name: str, labels: Mapping[str, str]
) -> dict[str, Any]:
    """Return an Image in JSON form."""
    return {
        "name": name,
        "labels": dict(sorted(labels.items())),
        "sourceDisk": f"projects/{project}/zones/{zone}/disks/{disk}",
        "storageLocations": [region_of(zone)],
    }
