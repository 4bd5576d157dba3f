"""AMIs of machines: moto's, with tagged snapshots, unique names, and delayed completion when a test
asks for it."""

from __future__ import annotations

from typing import Any

from moto.backends import get_backend

from tests.clouds.aws import replies

Reply = tuple[int, bytes]
_PER_KIND = "TagSpecification."


class Images:
    """`state` is that of new images: "available", "pending" or "failed"."""

    def __init__(self, account: str) -> None:
        self._account = account
        self.state = "available"

    def create(self, region: str, form: dict[str, str]) -> Reply:
        """Answer CreateImage."""
        backend = get_backend("ec2")[self._account][region]
        instance, name = form["InstanceId"], form["Name"]
        machine = next((item for item in backend.all_instances() if item.id == instance), None)
        if machine is None or machine.state == "terminated":
            message = f"The instance ID '{instance}' does not exist"
            return replies.error(400, "InvalidInstanceID.NotFound", message)
        taken = [item for item in _own(backend) if item.name == name]
        if taken:
            message = f"AMI name {name} is already in use by AMI {taken[0].id}"
            return replies.error(400, "InvalidAMIName.Duplicate", message)
        tags = _tags(form)
        image = backend.create_image(instance, name, "", [])
        image.state = self.state
        image.add_tags(tags.get("image", {}))
        image.ebs_snapshot.add_tags(tags.get("snapshot", {}))
        return replies.answer("CreateImage", {"imageId": image.id})

    def finish(self, region: str, image_id: str, state: str = "available") -> None:
        """Complete a pending image."""
        get_backend("ec2")[self._account][region].amis[image_id].state = state

    def snapshots(self, region: str) -> set[str]:
        """Return the image names in the tags of snapshots."""
        backend = get_backend("ec2")[self._account][region]
        marks = ({t["key"]: t["value"] for t in s.get_tags()} for s in _snapshots(backend))
        return {tags["spotd-image"] for tags in marks if "spotd-image" in tags}


def _own(backend: Any) -> list[Any]:
    return [ami for ami in backend.amis.values() if ami.owner_id == backend.account_id]


def _snapshots(backend: Any) -> list[Any]:
    return [*backend.snapshots.values()]


def _tags(form: dict[str, str]) -> dict[str, dict[str, str]]:
    """Parse TagSpecification.N.ResourceType and .Tag.M.Key/.Value."""
    result: dict[str, dict[str, str]] = {}
    for key, kind in form.items():
        if key.startswith(_PER_KIND) and key.endswith(".ResourceType"):
            prefix = key.removesuffix("ResourceType") + "Tag."
            names = [k for k in form if k.startswith(prefix) and k.endswith(".Key")]
            result[kind] = {form[k]: form[k.removesuffix("Key") + "Value"] for k in names}
    return result
