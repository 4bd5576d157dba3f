"""AMIs of machines: moto's, whose snapshots have tags, whose names are unique, and which are not
made at once when a test says so."""

from __future__ import annotations

from typing import Any

from moto.backends import get_backend

from tests.clouds.aws import replies

Reply = tuple[int, bytes]
_PER_KIND = "TagSpecification."


class Images:
    """`state` is that of the next ones: "available", "pending" or "failed"."""

    def __init__(self, account: str) -> None:
        self._account = account
        self.state = "available"

    def create(self, region: str, form: dict[str, str]) -> Reply:
        """CreateImage."""
        backend = get_backend("ec2")[self._account][region]
        instance, name = form["InstanceId"], form["Name"]
        machine = next((one for one in backend.all_instances() if one.id == instance), None)
        if machine is None or machine.state == "terminated":
            words = f"The instance ID '{instance}' does not exist"
            return replies.error(400, "InvalidInstanceID.NotFound", words)
        taken = [one for one in _own(backend) if one.name == name]
        if taken:
            words = f"AMI name {name} is already in use by AMI {taken[0].id}"
            return replies.error(400, "InvalidAMIName.Duplicate", words)
        tags = _tags(form)
        image = backend.create_image(instance, name, "", [])
        image.state = self.state
        image.add_tags(tags.get("image", {}))
        image.ebs_snapshot.add_tags(tags.get("snapshot", {}))
        return replies.answer("CreateImage", {"imageId": image.id})

    def finish(self, region: str, image_id: str, state: str = "available") -> None:
        """One that is pending is over."""
        get_backend("ec2")[self._account][region].amis[image_id].state = state

    def snapshots(self, region: str) -> set[str]:
        """Names of images that snapshots have as their tag."""
        backend = get_backend("ec2")[self._account][region]
        marks = ({t["key"]: t["value"] for t in s.get_tags()} for s in _snapshots(backend))
        return {tags["spotd-image"] for tags in marks if "spotd-image" in tags}


def _own(backend: Any) -> list[Any]:
    return [one for one in backend.amis.values() if one.owner_id == backend.account_id]


def _snapshots(backend: Any) -> list[Any]:
    return [*backend.snapshots.values()]


def _tags(form: dict[str, str]) -> dict[str, dict[str, str]]:
    """Of TagSpecification.N.ResourceType and .Tag.M.Key/.Value."""
    found: dict[str, dict[str, str]] = {}
    for key, kind in form.items():
        if key.startswith(_PER_KIND) and key.endswith(".ResourceType"):
            prefix = key.removesuffix("ResourceType") + "Tag."
            names = [k for k in form if k.startswith(prefix) and k.endswith(".Key")]
            found[kind] = {form[k]: form[k.removesuffix("Key") + "Value"] for k in names}
    return found
