"""Execute one call of a set-up step on Azure."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from providers.azure.clients import Clients
from providers.base import ProviderError, UnknownOutcome
from providers.iam.setup import Call, select_jmespath

# Error codes for a missing resource, and for an identity that is not known everywhere yet.
_MISSING_CODES = (
    "ResourceNotFound",
    "NotFound",
    "ResourceGroupNotFound",
    "404",
    "RoleDefinitionDoesNotExist",
    "RoleAssignmentNotFound",
    "ParentResourceNotFound",
)
_TRANSIENT_CODES = ("PrincipalNotFound",)
TIMEOUT_S, PAUSE_S = 120.0, 2.0


class Account:
    """An Azure account, by the credentials that azure-identity finds: there are no profiles."""

    def __init__(self, profile: str = "", endpoint: str = "", authority: str = "") -> None:
        if profile:
            raise UnknownOutcome("Azure has no profiles: `az login`, or AZURE_CLIENT_ID and others")
        self._clients = Clients("", endpoint, authority)

    def execute(self, call: Call) -> Any:
        """Return the queried part of the answer, None for a missing resource, True without a query.
        Raises ProviderError."""
        path, version = str(call.parameters["path"]), str(call.parameters["version"])
        if call.operation == "GET":
            answer = self._get(path, version)
        else:
            self._put(path, version, call.parameters["body"])
            answer = self._wait_until_provisioned(path, version)
        if answer is None:
            return None
        return select_jmespath(call.answer, answer) if call.answer else True

    def _get(self, path: str, version: str) -> Mapping[str, Any] | None:
        try:
            return self._clients.document(path, version)[0]
        except ProviderError as error:
            if error.code in _MISSING_CODES:
                return None
            raise

    def _put(self, path: str, version: str, body: Mapping[str, Any]) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while True:
            try:
                self._clients.document(path, version, body)
                return
            except ProviderError as error:
                if error.code not in _TRANSIENT_CODES or time.monotonic() > deadline_s:
                    raise
            time.sleep(PAUSE_S)

    def _wait_until_provisioned(self, path: str, version: str) -> Mapping[str, Any]:
        deadline_s = time.monotonic() + TIMEOUT_S
        while True:
            answer = self._get(path, version) or {}
            state = (answer.get("properties") or {}).get("provisioningState", "Succeeded")
            if answer and state == "Succeeded":
                return answer
            if state in ("Failed", "Canceled") or time.monotonic() > deadline_s:
                raise UnknownOutcome(f"{path} is {state}")
            time.sleep(PAUSE_S)
