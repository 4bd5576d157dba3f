"""The resources that `spotctl init gcp` creates in a project: services, a network, accounts, roles,
bindings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.clouds.faults import Fault
from tests.clouds.gcp.replies import HttpError, Row, not_found
from tests.clouds.gcp.state import Project


@dataclass(frozen=True)
class Asked:
    """A request to be answered."""

    project: Project
    given: dict[str, str]
    query: dict[str, str]
    body: Any
    fault: Fault | None


@dataclass
class Account:
    """`empty` are projects without other resources; `raced` makes somebody else change the policy
    once between read and write.

    In an empty project no service answers until it is enabled; enabling takes one poll of its
    operation, and `late` further requests fail. A new account is unknown to policies for `shy`
    tries.
    """

    empty: set[str] = field(default_factory=set)
    made: dict[tuple[str, ...], Row] = field(default_factory=dict)
    policies: dict[str, Row] = field(default_factory=dict)
    raced: bool = False
    late: int = 0
    shy: int = 0
    enabling: set[tuple[str, str]] = field(default_factory=set)

    def answers(self) -> dict[str, Callable[[Asked], Row]]:
        return {name: self._of_service(name, one) for name, one in self._answers().items()}

    def _of_service(self, name: str, answer: Callable[[Asked], Row]) -> Callable[[Asked], Row]:
        service = f"{name.partition('.')[0]}.googleapis.com"

        def ask(asked: Asked) -> Row:
            passed = asked.given
            project = passed.get("project") or passed.get("projectsId") or asked.project.name
            if project in self.empty and not service.startswith("serviceusage."):
                there = any({project, service} <= {*key} for key in self.made)
                if there and self.late:
                    self.late, there = self.late - 1, False
                if not there:
                    message = (
                        f"{service} has not been used in project {project} before or is disabled"
                    )
                    raise HttpError(403, "accessNotConfigured", message)
            return answer(asked)

        return ask

    def _answers(self) -> dict[str, Callable[[Asked], Row]]:
        looks = ("networks", "firewalls")
        makes = (*looks, "subnetworks")
        return {
            **{f"compute.{kind}.get": self.find for kind in looks},
            **{f"compute.{kind}.insert": self._insert for kind in makes},
            "compute.globalOperations.get": self._operation,
            "compute.regionOperations.get": self._operation,
            "serviceusage.services.get": self._service,
            "serviceusage.services.enable": self._enable,
            "serviceusage.operations.get": self._enabled,
            "iam.projects.serviceAccounts.get": self.find,
            "iam.projects.serviceAccounts.create": self._create_account,
            "iam.projects.roles.get": self.find,
            "iam.projects.roles.create": self._create_role,
            "iam.projects.roles.patch": self._change_role,
            "iam.projects.roles.undelete": self._undelete_role,
            "iam.projects.serviceAccounts.getIamPolicy": self._own_policy,
            "iam.projects.serviceAccounts.setIamPolicy": self._set_own_policy,
            "iam.projects.locations.workloadIdentityPools.get": self.find,
            "iam.projects.locations.workloadIdentityPools.create": self._create_pool,
            "iam.projects.locations.workloadIdentityPools.operations.get": self._pool_operation,
            "iam.projects.locations.workloadIdentityPools.providers.get": self.find,
            "iam.projects.locations.workloadIdentityPools.providers.create": self._create_pool,
            "cloudresourcemanager.projects.getIamPolicy": self._policy,
            "cloudresourcemanager.projects.setIamPolicy": self._set_policy,
        }

    def find(self, asked: Asked) -> Row:
        """Return the resource at the path."""
        key = tuple(asked.given.values())
        if key not in self.made:
            raise not_found("/".join(key))
        return self.made[key]

    def _insert(self, asked: Asked) -> Row:
        key = (*asked.given.values(), asked.body["name"])
        key = tuple(dict.fromkeys(key))
        network = asked.body.get("network", "")
        if network and (asked.given["project"], network.rpartition("/")[2]) not in self.made:
            raise not_found(network)
        if key in self.made:
            raise HttpError(409, "alreadyExists", "It is there already.")
        self.made[key] = asked.body
        return self._work(asked, "RUNNING")

    def _operation(self, asked: Asked) -> Row:
        return self._work(asked, "DONE")

    def _work(self, asked: Asked, status: str) -> Row:
        location = f"regions/{asked.given['region']}" if "region" in asked.given else "global"
        link = f"https://www.googleapis.com/compute/v1/projects/{asked.given['project']}/{location}"
        row = {"kind": "compute#operation", "name": "op-1", "status": status}
        return {**row, "selfLink": f"{link}/operations/op-1"}

    def _service(self, asked: Asked) -> Row:
        there = tuple(asked.given.values()) in self.made
        return {"state": "ENABLED" if there else "DISABLED"}

    def _enable(self, asked: Asked) -> Row:
        self.enabling.add(tuple(asked.given.values()))
        return {"name": "operations/acat.x"}

    def _enabled(self, asked: Asked) -> Row:
        self.made |= {key: {} for key in self.enabling}
        self.enabling.clear()
        return {"name": "operations/acat.x", "done": True, "response": {}}

    def _create_account(self, asked: Asked) -> Row:
        project = asked.given["projectsId"]
        email = f"{asked.body['accountId']}@{project}.iam.gserviceaccount.com"
        if len(asked.body["accountId"]) > 30:
            raise HttpError(400, "invalid", "accountId has 30 letters at most")
        self.made[project, email] = {"email": email}
        return {"email": email}

    def _create_role(self, asked: Asked) -> Row:
        resource_id, project = asked.body["roleId"], asked.given["projectsId"]
        if "-" in resource_id:
            raise HttpError(400, "invalid", "roleId has letters, digits, _ and . alone")
        if self.made.get((project, resource_id), {}).get("deleted"):
            message = (
                f"You can't create a role_id ({resource_id}) which has been marked for deletion."
            )
            raise HttpError(400, "failedPrecondition", message)
        row = {**asked.body["role"], "name": f"projects/{project}/roles/{resource_id}"}
        self.made[project, resource_id] = row
        return row

    def _change_role(self, asked: Asked) -> Row:
        row = self.find(asked)
        if row.get("deleted"):
            raise HttpError(400, "failedPrecondition", "The role is deleted.")
        row["includedPermissions"] = asked.body["includedPermissions"]
        return row

    def _undelete_role(self, asked: Asked) -> Row:
        row = self.find(asked)
        del row["deleted"]
        return row

    def _create_pool(self, asked: Asked) -> Row:
        """Create a pool, or a provider in one. Its name contains the project number."""
        key, path = tuple(asked.given.values()), "projects/1234/locations/global"
        if len(key) > 2 and key not in self.made:
            raise not_found("/".join(key))
        resource_id = asked.query[f"workloadIdentityPool{'Provider' if len(key) > 2 else ''}Id"]
        assert 4 <= len(resource_id) <= 32
        path += f"/workloadIdentityPools/{key[2]}/providers" if len(key) > 2 else ""
        path += "" if len(key) > 2 else "/workloadIdentityPools"
        row = {**asked.body, "name": f"{path}/{resource_id}", "state": "ACTIVE"}
        self.made[(*key, resource_id)] = row
        pool = key[2] if len(key) > 2 else resource_id
        name = f"projects/{key[0]}/locations/global/workloadIdentityPools/{pool}/operations/op"
        return {"name": name}

    def _pool_operation(self, asked: Asked) -> Row:
        passed = asked.given
        path = f"projects/{passed['projectsId']}/locations/global/workloadIdentityPools"
        return {"name": f"{path}/{passed['workloadIdentityPoolsId']}/operations/op", "done": True}

    def _own_policy(self, asked: Asked) -> Row:
        assert asked.query["options.requestedPolicyVersion"] == "3"
        empty: Row = {"etag": "MA==", "version": 1}
        return self.policies.setdefault(self.find(asked)["email"], empty)

    def _set_own_policy(self, asked: Asked) -> Row:
        policy = asked.body["policy"]
        assert policy["etag"] == self.policies[self.find(asked)["email"]]["etag"]
        self.policies[self.find(asked)["email"]] = policy
        return dict(policy)

    def _policy(self, asked: Asked) -> Row:
        assert asked.body["options"]["requestedPolicyVersion"] == 3, "or conditions are left out"
        empty: Row = {"etag": "MA==", "version": 3, "bindings": []}
        result = self.policies.setdefault(asked.given["projectsId"], empty)
        if self.raced:
            self.raced = False
            self.policies[asked.given["projectsId"]] = {**result, "etag": "MQ=="}
        return result

    def _set_policy(self, asked: Asked) -> Row:
        policy, project = asked.body["policy"], asked.given["projectsId"]
        if policy.get("etag") != self.policies[project]["etag"]:
            raise HttpError(409, "aborted", "There were concurrent policy changes.")
        if self.shy:
            self.shy -= 1
            raise HttpError(400, "badRequest", "Service account spotd-x does not exist.")
        for binding in policy["bindings"]:
            role = binding["role"].rpartition("/")[2]
            if (project, role) not in self.made:
                raise HttpError(400, "invalid", f"{role} is not a role")
        self.policies[project] = policy
        return policy
