"""What `spotctl init azure` makes in a subscription: a group, networks, identities, roles."""

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
    """`shy` is how often an identity that was just made is not known to who assigns roles."""

    def __init__(self) -> None:
        self.made: dict[str, dict[str, Any]] = {}
        self.wrong: list[str] = []
        self.puts: list[str] = []
        self.shy = 0

    def answer(self, method: str, path: str, body: Any) -> Answer | None:
        """None where nothing of this is at the path."""
        kind = next((kind for kind, form in _KINDS.items() if re.fullmatch(form, path)), "")
        if not kind:
            return None
        if method == "GET":
            found = self.made.get(path.lower())
            if found is None:
                code = "ResourceGroupNotFound" if kind == "group" else "ResourceNotFound"
                return 404, error(code, f"{path} was not found.")
            told = found.get("properties", {})
            if told.get("provisioningState") == "Updating":
                found["properties"] = {**told, "provisioningState": "Succeeded"}
                return 200, {**found, "properties": told}
            return 200, found
        self.puts.append(path)
        return self._put(kind, path, body)

    def _put(self, kind: str, path: str, body: dict[str, Any]) -> Answer:
        group = re.match(_GROUP, path)
        if group and kind != "group" and group[0].lower() not in self.made:
            return 404, error("ResourceGroupNotFound", f"{group[0]} was not found.")
        document = {**body, "id": path}
        told = dict(body.get("properties", {}))
        if kind in ("VirtualNetwork", "NetworkSecurityGroup"):
            self.wrong += problems(NETWORK, kind, body)
            told["provisioningState"] = "Updating"
            self.wrong += [f"{one} is not there" for one in self._missing(told)]
        elif kind == "identity":
            told |= {key: str(uuid4()) for key in ("principalId", "clientId", "tenantId")}
        elif kind == "trust":
            assert set(told) == {"issuer", "subject", "audiences"}
            if path.rpartition("/federatedIdentityCredentials/")[0].lower() not in self.made:
                return 404, error("ParentResourceNotFound", "There is no such identity.")
        elif kind == "definition":
            self._check_ident(path)
            [permission] = told["permissions"]
            if not permission["actions"] and not permission["dataActions"]:
                return 400, error("RoleDefinitionInvalid", "It grants nothing.")
        elif kind == "assignment":
            self._check_ident(path)
            if self.shy:
                self.shy -= 1
                return 400, error("PrincipalNotFound", "It does not exist in the directory.")
            holders = {
                one["properties"].get("principalId")
                for one in self.made.values()
                if "properties" in one
            }
            if told["principalId"] not in holders:
                return 400, error("PrincipalNotFound", "It does not exist in the directory.")
            if told["roleDefinitionId"].lower() not in self.made:
                return 400, error("RoleDefinitionDoesNotExist", "There is no such role.")
        document["properties"] = told
        self.made[path.lower()] = document
        return 201, document

    def _missing(self, told: dict[str, Any]) -> list[str]:
        """The firewalls that subnets name."""
        wanted = [
            subnet["properties"]["networkSecurityGroup"]["id"] for subnet in told.get("subnets", ())
        ]
        return [one for one in wanted if one.lower() not in self.made]

    def _check_ident(self, path: str) -> None:
        UUID(path.rpartition("/")[2])
