"""Images of machines: of the disk that one started from, while it runs.

`forceCreate` takes a disk that a machine uses. It is read as it is when the call comes, so what the
image is to have is on the disk by then. A machine image would be of the machine with its metadata,
keys included; an image of the disk has none of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from providers.base import ProviderError, RejectedError, UnpreparedError
from providers.gcp.clients import Clients
from providers.gcp.codes import EXISTS, NOT_FOUND, nobodys, operation_error
from providers.gcp.names import DEPLOYMENT_TAG, labelled, labels_of, last, parted, region_of
from providers.gcp.operations import done, request_id, us_of
from providers.images import NAME_TAG, Image, ImageState, check_name, not_ours

_STATES = {
    "READY": ImageState.AVAILABLE,
    "PENDING": ImageState.MAKING,
    "UNDEFINED_STATUS": ImageState.MAKING,
}


class Images:
    """Those of one deployment in one project, which are good in all zones."""

    def __init__(self, clients: Clients, deployment: str) -> None:
        self._clients = clients
        self._deployment = deployment

    def make(self, instance_id: str, name: str, tags: Mapping[str, str]) -> Image:
        """See ImageMaker.make_image. The image is kept in the machine's region."""
        check_name(name)
        found = self._named(name)
        if found is not None:
            return found
        zone, machine = parted(instance_id)
        row = self._get("Instances", zone=zone, instance=machine) if zone else None
        if row is None:
            raise RejectedError(f"{instance_id} is gone, and no image can be made of it")
        labels = labels_of({**tags, DEPLOYMENT_TAG: self._deployment, NAME_TAG: name})
        disk = next(last(disk.source) for disk in row.disks if disk.boot)
        body = image(self._clients.project, zone, disk, name, labels)
        making = Image(self._id(name), name, ImageState.MAKING, "", labels)
        ident = request_id(self._deployment, f"{name}\n{instance_id}")
        try:
            operation = self._clients.insert_image(body, ident)
            error = operation_error(operation) if done(operation) else None
        except ProviderError as refused:
            if refused.code not in EXISTS:
                raise
            error = refused
        if error is None:
            return making
        if error.code in EXISTS:  # by a call of ours whose answer was lost
            return self._named(name) or making
        # The same request has the same answer: there is no other for this machine and name.
        return Image(making.image_id, name, ImageState.FAILED, "", labels, error=str(error))

    def all(self) -> list[Image]:
        """Raises ProviderError."""
        rows = self._clients.listed("Images", labelled(self._deployment))
        return [self._read(row) for row in rows]

    def remove(self, image_id: str) -> None:
        """There is nothing behind an image."""
        name = last(image_id)
        if image_id != self._id(name):
            return
        row = self._get("Images", image=name)
        if row is None or row.labels.get(DEPLOYMENT_TAG) != self._deployment:
            return
        try:
            self._clients.call("Images", "delete_unary", image=name)
        except ProviderError as error:
            if not _missing(error):
                raise

    def _named(self, name: str) -> Image | None:
        """Raises RejectedError for one of somebody else."""
        row = self._get("Images", image=name)
        if row is None:
            return None
        if row.labels.get(DEPLOYMENT_TAG) != self._deployment:
            raise not_ours(name, self._clients.project)
        return self._read(row)

    def _get(self, collection: str, **fields: Any) -> Any:
        try:
            return self._clients.call(collection, "get", **fields)
        except ProviderError as error:
            if not _missing(error):
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
            made_at_us=us_of(row.creation_timestamp),
            error=f"its status is {row.status}" if state is ImageState.FAILED else "",
            size_gib=int(row.disk_size_gb or 0),
        )

    def _id(self, name: str) -> str:
        return f"projects/{self._clients.project}/global/images/{name}"


def _missing(error: ProviderError) -> bool:
    """Of an image too: its code and words are those of a place that lacks its image. A project that
    is not there is another matter."""
    return nobodys(error) or (error.code in NOT_FOUND and isinstance(error, UnpreparedError))


def image(
    project: str, zone: str, disk: str, name: str, labels: Mapping[str, str]
) -> dict[str, Any]:
    """An Image as it goes over the wire."""
    return {
        "name": name,
        "labels": dict(sorted(labels.items())),
        "sourceDisk": f"projects/{project}/zones/{zone}/disks/{disk}",
        "storageLocations": [region_of(zone)],
    }
