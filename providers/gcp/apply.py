"""Execute one call of a set-up step on Google Cloud."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from providers.base import ProviderError, UnknownOutcome
from providers.gcp.clients import Clients
from providers.gcp.codes import NOT_FOUND
from providers.iam.setup import Call, select_jmespath

TIMEOUT_S, PAUSE_S = 120.0, 1.0  # for operations and for propagation
_SERVICE_DISABLED = ("accessNotConfigured", "SERVICE_DISABLED")
_DELETED_ROLE = "marked for deletion"  # the role is undeleted, then updated
_NEW_ACCOUNT = re.compile(r"[Ss]ervice account .*does not exist")


class Account:
    """A Google Cloud project, through a credentials file or the SDK's own chain."""

    def __init__(self, profile: str = "", endpoints: Mapping[str, str] | None = None) -> None:
        self._clients = Clients("", Path(profile) if profile else None, endpoints)

    def execute(self, call: Call) -> Any:
        """Return the queried part of the answer, None for a missing resource, True without a query.

        A service that is not enabled has no resources. Retries while a resource that was just
        created is not known everywhere yet. Raises ProviderError.
        """
        deadline_s = time.monotonic() + TIMEOUT_S
        is_check = call.operation in ("GET", "bound")
        while True:
            try:
                return self._execute_once(call)
            except ProviderError as error:
                if is_check and (_is_missing(error) or error.code in _SERVICE_DISABLED):
                    return None
                if is_check or not _is_transient(error) or time.monotonic() > deadline_s:
                    raise
            time.sleep(PAUSE_S)

    def _execute_once(self, call: Call) -> Any:
        path, body = str(call.parameters["path"]), call.parameters.get("body")
        if call.operation in ("bound", "bind"):
            return self._binding(
                call.service, path, dict(body or {}), create=call.operation == "bind"
            )
        try:
            answer, _ = self._clients.request(call.service, call.operation, path, body)
        except ProviderError as error:
            role_id = (body or {}).get("roleId", "")
            if not role_id or _DELETED_ROLE not in str(error):
                raise
            answer, _ = self._clients.request(
                call.service, "POST", f"{path}/{role_id}:undelete", {}
            )
        if call.operation != "GET":
            self._wait_for_operation(call.service, answer)
        if final_path := call.parameters.get("then"):
            answer, _ = self._clients.request(call.service, "GET", str(final_path))
        return select_jmespath(call.answer, answer) if call.answer else True

    def _binding(self, service: str, path: str, wanted: dict[str, Any], *, create: bool) -> bool:
        """Whether a member has a role under exactly the wanted condition.

        With `create`, that is made so: other bindings of the role to the member are removed,
        because both belong to this deployment alone. The policy's etag protects concurrent changes
        of others.
        """
        options = {"options": {"requestedPolicyVersion": 3}}
        get_path = f"{path}:getIamPolicy"
        if service == "iam":  # service accounts take the version as a query parameter
            get_path, options = f"{get_path}?options.requestedPolicyVersion=3", {}
        policy, _ = self._clients.request(service, "POST", get_path, options)
        bindings = [*(policy.get("bindings") or ())]
        member = wanted["member"]
        member_bindings = [
            binding
            for binding in bindings
            if binding.get("role") == wanted["role"] and member in (binding.get("members") or ())
        ]
        if (
            [binding for binding in member_bindings if _matches(binding, wanted)]
            == member_bindings
            != []
        ):
            return True
        if not create:
            return False
        bindings = [
            remaining
            for binding in bindings
            if (remaining := _remove_member(binding, wanted)) is not None
        ]
        binding_ = {"role": wanted["role"], "members": [member]}
        bindings.append(
            binding_ | ({"condition": wanted["condition"]} if wanted["condition"] else {})
        )
        changed = {**policy, "bindings": bindings, "version": 3}
        self._clients.request(service, "POST", f"{path}:setIamPolicy", {"policy": changed})
        return True

    def _wait_for_operation(self, service: str, answer: Mapping[str, Any]) -> None:
        """Wait for an operation of Compute Engine or of the Service Usage API. Raises
        UnknownOutcome."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while path := _pending_operation_path(answer):
            if time.monotonic() > deadline_s:
                raise UnknownOutcome(f"{answer.get('name')} is not over yet")
            time.sleep(PAUSE_S)
            answer, _ = self._clients.request(service, "GET", path)
        error_document = answer.get("error") or {}
        for error in error_document.get("errors") or ([error_document] if error_document else ()):
            raise UnknownOutcome(f"{error.get('code')}: {error.get('message')}")


def _pending_operation_path(answer: Mapping[str, Any]) -> str:
    """Return the path for polling an operation; "" for a finished one, and for other answers."""
    name = str(answer.get("name", ""))
    if name.startswith("operations/") or "/operations/" in name:
        return "" if answer.get("done") else f"/v1/{name}"
    if answer.get("kind") != "compute#operation" or answer.get("status") == "DONE":
        return ""
    link = str(answer.get("selfLink", ""))
    return "/compute/v1/projects/" + link.partition("/projects/")[2]


def _is_transient(error: ProviderError) -> bool:
    """Whether a service was enabled a moment ago, or an account is still unknown to policies."""
    return error.code in _SERVICE_DISABLED or bool(_NEW_ACCOUNT.search(str(error)))


def _is_missing(error: ProviderError) -> bool:
    return error.code in NOT_FOUND or error.code in ("HTTP 404", "NOT_FOUND")


def _remove_member(
    binding: dict[str, Any], binding_spec: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the binding without the wanted member; None when nobody is left."""
    members = list(binding.get("members") or ())
    if binding.get("role") != binding_spec["role"] or binding_spec["member"] not in members:
        return binding
    remaining = [member for member in members if member != binding_spec["member"]]
    return {**binding, "members": remaining} if remaining else None


def _matches(binding: Mapping[str, Any], binding_spec: Mapping[str, Any]) -> bool:
    actual = (binding.get("condition") or {}).get("expression", "")
    expected = binding_spec["condition"].get("expression", "")
    return bool(binding.get("role") == binding_spec["role"]) and bool(actual == expected)
