"""Machine images: AMIs and their snapshots.

The machine is not restarted (`NoReboot`): a reboot would run its first-boot set-up with a new
identity and new keys, and EC2 does not say whether the disk is read before or after. So everything
that belongs into the image has to be on the disk before the call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from providers.aws.clients import Clients
from providers.aws.codes import IMAGE_GONE, NAME_TAKEN, NOT_FOUND, SNAPSHOT_IN_USE
from providers.aws.listing import DEPLOYMENT_TAG, split_name, tag_filter, tags_of
from providers.base import ProviderError, RejectedError, timestamp_us
from providers.images import NAME_TAG, Image, ImageState, check_name, name_taken

_STATES = {
    "available": ImageState.AVAILABLE,
    "pending": ImageState.MAKING,
    "transient": ImageState.MAKING,
}


class Images:
    """The images of one deployment in some regions."""

    def __init__(self, clients: Clients, regions: Sequence[str], deployment: str) -> None:
        self._clients = clients
        self._regions = regions
        self._deployment = deployment

    def make_image(self, instance_id: str, name: str, tags: Mapping[str, str]) -> Image:
        """See ImageMaker.make_image; an AMI belongs to the machine's region."""
        check_name(name)
        region, instance = split_name(instance_id)
        existing = self._find_by_name(region, name)
        if existing is not None:
            return existing
        all_tags = {**tags, DEPLOYMENT_TAG: self._deployment, NAME_TAG: name}
        try:
            answer = self._clients.call(
                region, "create_image", **create_image(instance, name, all_tags)
            )
        except ProviderError as error:
            if error.code == NAME_TAKEN:
                existing = self._find_by_name(
                    region, name
                )  # by a call of ours whose answer was lost
                if existing is None:
                    raise name_taken(name, region) from None
                return existing
            if error.code in NOT_FOUND:
                message = f"{region}: {instance} is gone, and no image can be made of it"
                raise RejectedError(message, code=error.code) from None
            raise
        return Image(answer["ImageId"], name, ImageState.MAKING, region, all_tags)

    def images(self) -> list[Image]:
        """Return the images of every region. Raises ProviderError."""
        results = self._clients.for_all_regions(self._regions, self._in_region)
        return [image for _, images in results for image in images]

    def remove_image(self, image_id: str) -> None:
        """Delete an AMI and its snapshots.

        Deregistering an AMI keeps its snapshots, and they cannot be deleted before it. So every
        call also deletes snapshots whose AMI is already gone, for example after an interrupted
        earlier call.
        """
        self._clients.for_all_regions(self._regions, lambda region: self._remove(region, image_id))

    def _remove(self, region: str, image_id: str) -> Iterable[None]:
        images = self._in_region(region)
        if any(image.image_id == image_id for image in images):
            self._call_ignoring(IMAGE_GONE, region, "deregister_image", ImageId=image_id)
        names = {image.name for image in images if image.image_id != image_id}
        filters = [tag_filter(self._deployment), {"Name": "tag-key", "Values": [NAME_TAG]}]
        for row in self._clients.pages(
            region, "describe_snapshots", "Snapshots", OwnerIds=["self"], Filters=filters
        ):
            if tags_of(row).get(NAME_TAG) not in names:
                # In use: of an image that is being made and is not listed yet.
                ignored = NOT_FOUND | {SNAPSHOT_IN_USE}
                self._call_ignoring(
                    ignored, region, "delete_snapshot", SnapshotId=row["SnapshotId"]
                )
        return ()

    def _find_by_name(self, region: str, name: str) -> Image | None:
        """Return the deployment's image of that name. A failed one keeps its name until it is
        removed."""
        return next((image for image in self._in_region(region) if image.name == name), None)

    def _in_region(self, region: str) -> list[Image]:
        own_filter = [tag_filter(self._deployment)]
        rows = self._clients.pages(
            region, "describe_images", "Images", Owners=["self"], Filters=own_filter
        )
        return [read_image(region, row) for row in rows]

    def _call_ignoring(
        self, codes: Iterable[str], region: str, operation: str, **parameters: Any
    ) -> None:
        try:
            self._clients.call(region, operation, **parameters)
        except ProviderError as error:
            if error.code not in codes:
                raise


def create_image(instance: str, name: str, tags: Mapping[str, str]) -> dict[str, Any]:
    """Return the parameters of CreateImage."""
    pairs = [{"Key": key, "Value": value} for key, value in sorted(tags.items())]
    return {
        "InstanceId": instance,
        "Name": name,
        "NoReboot": True,
        "TagSpecifications": [
            {"ResourceType": resource_type, "Tags": pairs}
            for resource_type in ("image", "snapshot")
        ],
    }


def read_image(region: str, row: Mapping[str, Any]) -> Image:
    """Parse a row of DescribeImages."""
    state = _STATES.get(row.get("State", ""), ImageState.FAILED)
    message = (row.get("StateReason") or {}).get("Message") or row.get("State", "")
    created = str(row.get("CreationDate") or "")
    return Image(
        image_id=row["ImageId"],
        name=row.get("Name", ""),
        state=state,
        region=region,
        tags=tags_of(row),
        made_at_us=timestamp_us(datetime.fromisoformat(created)) if created else 0,
        error=message if state is ImageState.FAILED else "",
        size_gib=sum(
            (device.get("Ebs") or {}).get("VolumeSize") or 0
            for device in row.get("BlockDeviceMappings") or ()
        ),
    )
