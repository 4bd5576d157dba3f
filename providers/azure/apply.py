"""Asks Azure for one call of a step."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from providers.azure.clients import Clients
from providers.base import ProviderError, UnknownOutcome
from providers.iam.setup import Call, search

# Of what is not there; of a role that names an identity which Azure does not know everywhere yet.
_ABSENT = (
    "ResourceNotFound",
    "NotFound",
    "ResourceGroupNotFound",
    "404",
    "RoleDefinitionDoesNotExist",
    "RoleAssignmentNotFound",
    "ParentResourceNotFound",
)
_NOT_YET = ("PrincipalNotFound",)
PATIENCE_S, PAUSE_S = 120.0, 2.0


class Account:
    """By what azure-identity finds by itself: there are no profiles."""

    def __init__(self, profile: str = "", endpoint: str = "", authority: str = "") -> None:
        if profile:
            raise UnknownOutcome("Azure has no profiles: `az login`, or AZURE_CLIENT_ID and others")
        self._clients = Clients("", endpoint, authority)

    def ask(self, call: Call) -> Any:
        """The part of the answer that is wanted, None for what does not exist; an answer of which
        nothing is wanted is true. Raises ProviderError."""
        path, version = str(call.parameters["path"]), str(call.parameters["version"])
        if call.operation == "GET":
            answer = self._get(path, version)
        else:
            self._put(path, version, call.parameters["body"])
            answer = self._settled(path, version)
        if answer is None:
            return None
        return search(call.answer, answer) if call.answer else True

    def _get(self, path: str, version: str) -> Mapping[str, Any] | None:
        try:
            return self._clients.document(path, version)[0]
        except ProviderError as error:
            if error.code in _ABSENT:
                return None
            raise

    def _put(self, path: str, version: str, body: Mapping[str, Any]) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._clients.document(path, version, body)
                return
            except ProviderError as error:
                if error.code not in _NOT_YET or time.monotonic() > until_s:
                    raise
            time.sleep(PAUSE_S)

    def _settled(self, path: str, version: str) -> Mapping[str, Any]:
        until_s = time.monotonic() + PATIENCE_S
        while True:
            answer = self._get(path, version) or {}
            state = (answer.get("properties") or {}).get("provisioningState", "Succeeded")
            if answer and state == "Succeeded":
                return answer
            if state in ("Failed", "Canceled") or time.monotonic() > until_s:
                raise UnknownOutcome(f"{path} is {state}")
            time.sleep(PAUSE_S)
