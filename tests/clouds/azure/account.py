"""The resources that `spotctl init azure` creates in a subscription: a group, networks, identities,
roles."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID, uuid4

from tests.clouds.azure.refusals import error
from tests.clouds.azure.shapes import problems
from tests.fixtures.later import Later

NETWORK: Any = Later("azure.mgmt.network.models")
_GROUP = r"/subscriptions/[^/]+/resource[gG]roups/([^/]+)"
_KINDS = {
    "group": _GROUP,
    "VirtualNetwork": rf"{_GROUP}/providers/Microsoft.Network/virtualNetworks/[^/]+",
    "NetworkSecurityGroup": rf"{_GROUP}/providers/Microsoft.Network/networkSecurityGroups/[^/]+",
    "identity": rf"{_GROUP}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/[^/]+",
    "trust": rf"{_GROUP}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/[^/]+"
    r"/federatedIdentityCredentials/[^/]+",
    "definition": r"(/subscriptions.*)/providers/Microsoft.Authorization/roleDefinitions/([^/]+)",
    "assignment": r"(/subscriptions.*)/providers/Microsoft.Authorization/roleAssignments/([^/]+)",
}
Answer = tuple[int, Any]


class Account:
    """`shy` is how many role assignments fail because a new identity is not known yet."""

    def __init__(self) -> None:
        self.made: dict[str, dict[str, Any]] = {}
        self.wrong: list[str] = []
        self.puts: list[str] = []
        self.shy = 0

    def answer(self, method: str, path: str, body: Any) -> Answer | None:
        """Return None for a path outside these resources."""
        kind = next((kind for kind, form in _KINDS.items() if re.fullmatch(form, path)), "")
        if not kind:
            return None
        if method == "GET":
            result = self.made.get(path.lower())
            if result is None:
                code = "ResourceGroupNotFound" if kind == "group" else "ResourceNotFound"
                return 404, error(code, f"{path} was not found.")
            reported = result.get("properties", {})
            if reported.get("provisioningState") == "Updating":
                result["properties"] = {**reported, "provisioningState": "Succeeded"}
                return 200, {**result, "properties": reported}
            return 200, result
        self.puts.append(path)
        return self._put(kind, path, body)

    def _put(self, kind: str, path: str, body: dict[str, Any]) -> Answer:
        group = re.match(_GROUP, path)
        if group and kind != "group" and group[0].lower() not in self.made:
            return 404, error("ResourceGroupNotFound", f"{group[0]} was not found.")
        document = {**body, "id": path}
        reported = dict(body.get("properties", {}))
        if kind in ("VirtualNetwork", "NetworkSecurityGroup"):
            self.wrong += problems(NETWORK, kind, body)
            reported["provisioningState"] = "Updating"
            self.wrong += [f"{item} is not there" for item in self._missing(reported)]
        elif kind == "identity":
            reported |= {key: str(uuid4()) for key in ("principalId", "clientId", "tenantId")}
        elif kind == "trust":
            assert set(reported) == {"issuer", "subject", "audiences"}
            if path.rpartition("/federatedIdentityCredentials/")[0].lower() not in self.made:
                return 404, error("ParentResourceNotFound", "There is no such identity.")
        elif kind == "definition":
            self._check_ident(path)
            [permission] = reported["permissions"]
            if not permission["actions"] and not permission["dataActions"]:
                return 400, error("RoleDefinitionInvalid", "It grants nothing.")
        elif kind == "assignment":
            self._check_ident(path)
            if self.shy:
                self.shy -= 1
                return 400, error("PrincipalNotFound", "It does not exist in the directory.")
            holders = {
                item["properties"].get("principalId")
                for item in self.made.values()
                if "properties" in item
            }
            if reported["principalId"] not in holders:
                return 400, error("PrincipalNotFound", "It does not exist in the directory.")
            if reported["roleDefinitionId"].lower() not in self.made:
                return 400, error("RoleDefinitionDoesNotExist", "There is no such role.")
        document["properties"] = reported
        self.made[path.lower()] = document
        return 201, document

    def _missing(self, told: dict[str, Any]) -> list[str]:
        """Return the missing firewalls that subnets name."""
        wanted = [
            subnet["properties"]["networkSecurityGroup"]["id"] for subnet in told.get("subnets", ())
        ]
        return [item for item in wanted if item.lower() not in self.made]

    def _check_ident(self, path: str) -> None:
        UUID(path.rpartition("/")[2])
