"""Images of disks: names are unique in a project; they are ready when their operation is done."""

from __future__ import annotations

from tests.clouds.gcp.machines import Failure, Machines
from tests.clouds.gcp.replies import HttpError, Row, not_found
from tests.clouds.gcp.state import Project, Work, fingerprint, number, stamp


class Images:
    """Machines start from those that are ready."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines

    def create(
        self, project: Project, body: Row, query: dict[str, str], failure: Failure | None
    ) -> Work:
        """Raises HttpError for a name in use, for a missing disk, and for a disk in use unless
        forced."""
        name, path = body["name"], project.path("", "images", body["name"])
        if name in project.images:
            raise HttpError(409, "alreadyExists", f"The resource '{path}' already exists")
        parts = body["sourceDisk"].split("/")
        disk = project.disks.get((parts[3], parts[5]))
        if disk is None:
            raise not_found(body["sourceDisk"])
        if disk["users"] and query.get("forceCreate") != "true":
            message = f"The disk resource '{body['sourceDisk']}' is already being used"
            raise HttpError(400, "resourceInUseByAnotherResource", message)
        project.images[name] = {
            **body,
            "kind": "compute#image",
            "id": number(),
            "status": "PENDING",
            "creationTimestamp": stamp(),
            "diskSizeGb": disk["sizeGb"],
            "sourceDisk": disk["selfLink"],
            "sourceType": "RAW",
            "labelFingerprint": fingerprint(),
            "selfLink": project.link("", "images", name),
        }

        def finish() -> Failure | None:
            if failure is not None:
                project.images.pop(name, None)
            elif name in project.images:
                project.images[name]["status"] = "READY"
                self._machines.images.add(path)
            return failure

        delay_s, resource_id = self._machines.delay_s, query.get("requestId", "")
        return project.begin(
            "insert", ("", name), delay_s, finish, collection="images", request_id=resource_id
        )

    def find(self, project: Project, name: str) -> Row:
        """Raises HttpError when there is none."""
        if name not in project.images:
            raise not_found(project.path("", "images", name))
        return project.images[name]

    def delete(self, project: Project, name: str) -> Work:
        """Raises HttpError when there is none."""
        self.find(project, name)["status"] = "DELETING"

        def finish() -> Failure | None:
            project.images.pop(name, None)
            self._machines.images.discard(project.path("", "images", name))
            return None

        return project.begin("delete", ("", name), 0.0, finish, collection="images")
