"""The stand-in's resource policies: by region and name, ready after a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.clouds.gcp.replies import HttpError, Row, not_found
from tests.clouds.gcp.state import Key, Project, number, stamp

Regional = dict[str, dict[Key, Row]]


class Policies:
    """`slow` is how many reads a policy takes to become ready."""

    def __init__(self) -> None:
        self.slow = 1
        self._rows: Regional = {}  # by project
        self._looks: dict[Key, int] = {}

    def verbs(self, page: Callable[..., Row]) -> dict[str, Callable[[Any], Row]]:
        """Return the calls that it answers; `page` writes an aggregated list."""
        return {
            "compute.resourcePolicies.insert": self._insert,
            "compute.resourcePolicies.get": self._get,
            "compute.resourcePolicies.delete": self._delete,
            "compute.resourcePolicies.aggregatedList": lambda asked: page(
                asked,
                "resourcePolicy",
                "resourcePolicies",
                [(region, row) for (region, _), row in self.of(asked.project).items()],
            ),
        }

    def of(self, project: Project) -> dict[Key, Row]:
        """(region, name) -> policy."""
        return self._rows.setdefault(project.name, {})

    def check(self, project: Project, zone: str, body: Row) -> None:
        """Raises HttpError for a machine with a policy that is missing or not ready."""
        for link in body.get("resourcePolicies", ()):
            key = (link.split("/")[-3], link.rpartition("/")[2])
            row = self.of(project).get(key)
            if row is None:
                raise not_found(link)
            if row["status"] != "READY" or not zone.startswith(key[0]):
                raise HttpError(400, "resourceNotReady", f"The resource '{link}' is not ready")

    def _insert(self, asked: Any) -> Row:
        region, body = asked.given["region"], asked.body
        key, link = (region, body["name"]), _link(asked.project, region, body["name"])
        if key in self.of(asked.project):
            raise HttpError(409, "alreadyExists", f"The resource '{link}' already exists")
        row = {**body, "kind": "compute#resourcePolicy", "id": number(), "status": "CREATING"}
        row |= {"selfLink": link, "creationTimestamp": stamp()}
        row["region"] = link.partition("/resourcePolicies/")[0]
        self.of(asked.project)[key] = row
        return _operation(asked.project, region, link, "insert")

    def _get(self, asked: Any) -> Row:
        key = (asked.given["region"], asked.given["resourcePolicy"])
        row = self.of(asked.project).get(key)
        if row is None:
            raise not_found(_link(asked.project, *key))
        self._looks[key] = self._looks.get(key, 0) + 1
        if self._looks[key] >= self.slow:
            row["status"] = "READY"
        return row

    def _delete(self, asked: Any) -> Row:
        region, name = asked.given["region"], asked.given["resourcePolicy"]
        link = _link(asked.project, region, name)
        if (region, name) not in self.of(asked.project):
            raise not_found(link)
        for machine in asked.project.machines.values():
            used = {item.rpartition("/")[2] for item in machine.row.get("resourcePolicies", ())}
            if name in used:
                message = f"The resource_policy resource '{link}' is already being used"
                raise HttpError(400, "resourceInUseByAnotherResource", message)
        del self.of(asked.project)[region, name]
        self._looks.pop((region, name), None)
        return _operation(asked.project, region, link, "delete")


def _link(project: Project, region: str, name: str) -> str:
    where = f"{project.host}/compute/v1/projects/{project.name}/regions/{region}"
    return f"{where}/resourcePolicies/{name}"


def _operation(project: Project, region: str, link: str, kind: str) -> Row:
    resource_id = number()
    return {
        "kind": "compute#operation",
        "id": resource_id,
        "name": f"operation-{resource_id}",
        "operationType": kind,
        "status": "RUNNING",
        "region": f"{project.host}/compute/v1/projects/{project.name}/regions/{region}",
        "targetLink": link,
    }
