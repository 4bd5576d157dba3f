"""Images of machines: AMIs, and the snapshots behind them.

EC2 is told not to restart the machine (`NoReboot`). Started anew it would make itself a machine
again, with keys and an identity of its own, while nobody says whether its disk is read before or
after that. So what the image is to have is on the disk when the call comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from providers.aws.clients import Clients
from providers.aws.codes import IMAGE_GONE, NAME_TAKEN, NOBODYS, SNAPSHOT_IN_USE
from providers.aws.listing import DEPLOYMENT_TAG, parted, tag_filter, tags_of, us_of
from providers.base import ProviderError, RejectedError
from providers.images import NAME_TAG, Image, ImageState, check_name, not_ours

_STATES = {
    "available": ImageState.AVAILABLE,
    "pending": ImageState.MAKING,
    "transient": ImageState.MAKING,
}


class Images:
    """Those of one deployment in some regions."""

    def __init__(self, clients: Clients, regions: Sequence[str], deployment: str) -> None:
        self._clients = clients
        self._regions = regions
        self._deployment = deployment

    def make(self, instance_id: str, name: str, tags: Mapping[str, str]) -> Image:
        """See ImageMaker.make_image; an AMI is of the machine's region."""
        check_name(name)
        region, instance = parted(instance_id)
        found = self._named(region, name)
        if found is not None:
            return found
        marks = {**tags, DEPLOYMENT_TAG: self._deployment, NAME_TAG: name}
        try:
            answer = self._clients.call(
                region, "create_image", **create_image(instance, name, marks)
            )
        except ProviderError as error:
            if error.code == NAME_TAKEN:
                found = self._named(region, name)  # by a call of ours whose answer was lost
                if found is None:
                    raise not_ours(name, region) from None
                return found
            if error.code in NOBODYS:
                words = f"{region}: {instance} is gone, and no image can be made of it"
                raise RejectedError(words, code=error.code) from None
            raise
        return Image(answer["ImageId"], name, ImageState.MAKING, region, marks)

    def all(self) -> list[Image]:
        """Of every region. Raises ProviderError."""
        answers = self._clients.everywhere(self._regions, self._of)
        return [image for _, found in answers for image in found]

    def remove(self, image_id: str) -> None:
        """An AMI does not take its snapshots along, and they cannot go before it: those of ours
        whose image is no more, be it since an earlier try, go with every removal."""
        self._clients.everywhere(self._regions, lambda region: self._remove(region, image_id))

    def _remove(self, region: str, image_id: str) -> Iterable[None]:
        found = self._of(region)
        if any(image.image_id == image_id for image in found):
            self._unless(IMAGE_GONE, region, "deregister_image", ImageId=image_id)
        names = {image.name for image in found if image.image_id != image_id}
        marked = [tag_filter(self._deployment), {"Name": "tag-key", "Values": [NAME_TAG]}]
        for row in self._clients.pages(
            region, "describe_snapshots", "Snapshots", OwnerIds=["self"], Filters=marked
        ):
            if tags_of(row).get(NAME_TAG) not in names:
                # In use: of an image that is being made and is not listed yet.
                gone = NOBODYS | {SNAPSHOT_IN_USE}
                self._unless(gone, region, "delete_snapshot", SnapshotId=row["SnapshotId"])
        return ()

    def _named(self, region: str, name: str) -> Image | None:
        """Ours of that name. One that failed is told, and keeps the name until it is removed."""
        return next((one for one in self._of(region) if one.name == name), None)

    def _of(self, region: str) -> list[Image]:
        ours = [tag_filter(self._deployment)]
        rows = self._clients.pages(
            region, "describe_images", "Images", Owners=["self"], Filters=ours
        )
        return [read_image(region, row) for row in rows]

    def _unless(self, codes: Iterable[str], region: str, operation: str, **given: Any) -> None:
        try:
            self._clients.call(region, operation, **given)
        except ProviderError as error:
            if error.code not in codes:
                raise


def create_image(instance: str, name: str, tags: Mapping[str, str]) -> dict[str, Any]:
    """Parameters of CreateImage."""
    marks = [{"Key": key, "Value": value} for key, value in sorted(tags.items())]
    return {
        "InstanceId": instance,
        "Name": name,
        "NoReboot": True,
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": marks} for kind in ("image", "snapshot")
        ],
    }


def read_image(region: str, row: Mapping[str, Any]) -> Image:
    """One of DescribeImages."""
    state = _STATES.get(row.get("State", ""), ImageState.FAILED)
    words = (row.get("StateReason") or {}).get("Message") or row.get("State", "")
    made = str(row.get("CreationDate") or "")
    return Image(
        image_id=row["ImageId"],
        name=row.get("Name", ""),
        state=state,
        region=region,
        tags=tags_of(row),
        made_at_us=us_of(datetime.fromisoformat(made)) if made else 0,
        error=words if state is ImageState.FAILED else "",
        size_gib=sum(
            (one.get("Ebs") or {}).get("VolumeSize") or 0
            for one in row.get("BlockDeviceMappings") or ()
        ),
    )
