"""Placement groups, which moto lacks: by region and name, with their machines."""

from __future__ import annotations

import re
from collections.abc import Callable

from moto.backends import get_backend

from tests.clouds.aws import replies
from tests.clouds.aws.replies import Tree

Reply = tuple[int, bytes]
Key = tuple[str, str]  # (region, name)
_ALIVE = ("pending", "running", "stopping", "stopped")


class Groups:
    """`machines` maps instance -> name of its group."""

    def __init__(self, account: str) -> None:
        self._account = account
        self.tags: dict[Key, dict[str, str]] = {}
        self.machines: dict[str, str] = {}

    def verbs(self) -> dict[str, Callable[[str, dict[str, str]], Reply | None]]:
        """Return the actions that it answers."""
        return {
            "CreatePlacementGroup": self._create,
            "DescribePlacementGroups": self._describe,
            "DeletePlacementGroup": self._delete,
        }

    def refuse(self, region: str, form: dict[str, str]) -> Reply | None:
        """Refuse to launch into a missing group."""
        name = form.get("Placement.GroupName", "")
        if name and (region, name) not in self.tags:
            message = f"The Placement Group '{name}' is unknown."
            return replies.error(400, "InvalidPlacementGroup.Unknown", message)
        return None

    def dress(self, answer: bytes) -> bytes:
        """Add the groups to moto's listing of machines."""
        text = answer.decode()
        for instance, name in self.machines.items():
            result = rf"(<instanceId>{instance}</instanceId>.*?<placement>)(.*?)(</placement>)"
            text = re.sub(
                result, rf"\1<groupName>{name}</groupName>\3", text, count=1, flags=re.DOTALL
            )
        return text.encode()

    def _create(self, region: str, form: dict[str, str]) -> Reply:
        name = form["GroupName"]
        if (region, name) in self.tags:
            message = f"The Placement Group '{name}' already exists."
            return replies.error(400, "InvalidPlacementGroup.Duplicate", message)
        prefix = "TagSpecification.1.Tag."
        keys = {k: v for k, v in form.items() if k.startswith(prefix) and k.endswith(".Key")}
        tags = {key: form[k.removesuffix("Key") + "Value"] for k, key in keys.items()}
        self.tags[region, name] = tags
        return replies.answer("CreatePlacementGroup", {"placementGroup": _row(name, tags)})

    def _describe(self, region: str, form: dict[str, str]) -> Reply:
        wanted = replies.filters(form)
        rows: list[Tree] = [
            _row(name, tags)
            for (where, name), tags in self.tags.items()
            if where == region
            and all(tags.get(key.removeprefix("tag:")) in values for key, values in wanted.items())
        ]
        return replies.answer("DescribePlacementGroups", {"placementGroupSet": rows})

    def _delete(self, region: str, form: dict[str, str]) -> Reply:
        name = form["GroupName"]
        if (region, name) not in self.tags:
            message = f"The Placement Group '{name}' is unknown."
            return replies.error(400, "InvalidPlacementGroup.Unknown", message)
        backend = get_backend("ec2")[self._account][region]
        alive = {instance.id for instance in backend.all_instances() if instance.state in _ALIVE}
        if any(group == name and one in alive for one, group in self.machines.items()):
            message = f"The placement group '{name}' is in use and may not be deleted."
            return replies.error(400, "InvalidPlacementGroup.InUse", message)
        del self.tags[region, name]
        return replies.answer("DeletePlacementGroup", {"return": "true"})


def _row(name: str, tags: dict[str, str]) -> dict[str, Tree]:
    return {
        "groupName": name,
        "strategy": "cluster",
        "state": "available",
        "tagSet": replies.tag_set(tags),
    }
