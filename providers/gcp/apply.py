"""Asks Google Cloud for one call of a step."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from providers.base import ProviderError, UnknownOutcome
from providers.gcp.clients import Clients
from providers.gcp.codes import NOT_FOUND
from providers.iam.setup import Call, search

PATIENCE_S, PAUSE_S = 120.0, 1.0  # with an operation, and with what is not known everywhere yet
_OUT = ("accessNotConfigured", "SERVICE_DISABLED")
_DELETED = "marked for deletion"  # of a role that is made; what it may do is put right after that
_NEW = re.compile(r"[Ss]ervice account .*does not exist")


class Account:
    """A project, by a file of credentials or by what the SDK finds by itself."""

    def __init__(self, profile: str = "", endpoints: Mapping[str, str] | None = None) -> None:
        self._clients = Clients("", Path(profile) if profile else None, endpoints)

    def ask(self, call: Call) -> Any:
        """The part of the answer that is wanted, None for what does not exist, which is all that a
        service has that is not enabled; an answer of which nothing is wanted is true. What was just
        made and is not known everywhere yet is waited for. Raises ProviderError."""
        until_s = time.monotonic() + PATIENCE_S
        looks = call.operation in ("GET", "bound")
        while True:
            try:
                return self._ask(call)
            except ProviderError as error:
                if looks and (_absent(error) or error.code in _OUT):
                    return None
                if looks or not _not_yet(error) or time.monotonic() > until_s:
                    raise
            time.sleep(PAUSE_S)

    def _ask(self, call: Call) -> Any:
        path, body = str(call.parameters["path"]), call.parameters.get("body")
        if call.operation in ("bound", "bind"):
            return self._binding(
                call.service, path, dict(body or {}), make=call.operation == "bind"
            )
        try:
            answer, _ = self._clients.ask(call.service, call.operation, path, body)
        except ProviderError as error:
            ident = (body or {}).get("roleId", "")
            if not ident or _DELETED not in str(error):
                raise
            answer, _ = self._clients.ask(call.service, "POST", f"{path}/{ident}:undelete", {})
        if call.operation != "GET":
            self._settle(call.service, answer)
        if then := call.parameters.get("then"):
            answer, _ = self._clients.ask(call.service, "GET", str(then))
        return search(call.answer, answer) if call.answer else True

    def _binding(self, service: str, path: str, wanted: dict[str, Any], *, make: bool) -> bool:
        """Whether a member has a role under a condition and no other; with `make` that is so from
        then on, and what it had of the role before is taken out: roles and members are ours alone.
        The policy's etag keeps a change of somebody else's from being lost."""
        options = {"options": {"requestedPolicyVersion": 3}}
        asked = f"{path}:getIamPolicy"
        if service == "iam":  # whose own accounts have it in the query
            asked, options = f"{asked}?options.requestedPolicyVersion=3", {}
        policy, _ = self._clients.ask(service, "POST", asked, options)
        bindings = [*(policy.get("bindings") or ())]
        member = wanted["member"]
        held = [
            binding
            for binding in bindings
            if binding.get("role") == wanted["role"] and member in (binding.get("members") or ())
        ]
        if [one for one in held if _is(one, wanted)] == held != []:
            return True
        if not make:
            return False
        bindings = [left for one in bindings if (left := _without(one, wanted)) is not None]
        new = {"role": wanted["role"], "members": [member]}
        bindings.append(new | ({"condition": wanted["condition"]} if wanted["condition"] else {}))
        changed = {**policy, "bindings": bindings, "version": 3}
        self._clients.ask(service, "POST", f"{path}:setIamPolicy", {"policy": changed})
        return True

    def _settle(self, service: str, answer: Mapping[str, Any]) -> None:
        """Until an operation is over: of Compute Engine, or of who enables services."""
        until_s = time.monotonic() + PATIENCE_S
        while path := _unfinished(answer):
            if time.monotonic() > until_s:
                raise UnknownOutcome(f"{answer.get('name')} is not over yet")
            time.sleep(PAUSE_S)
            answer, _ = self._clients.ask(service, "GET", path)
        found = answer.get("error") or {}
        for error in found.get("errors") or ([found] if found else ()):
            raise UnknownOutcome(f"{error.get('code')}: {error.get('message')}")


def _unfinished(answer: Mapping[str, Any]) -> str:
    """Where an operation is looked at; "" for one that is over, and for what is none."""
    name = str(answer.get("name", ""))
    if name.startswith("operations/") or "/operations/" in name:
        return "" if answer.get("done") else f"/v1/{name}"
    if answer.get("kind") != "compute#operation" or answer.get("status") == "DONE":
        return ""
    link = str(answer.get("selfLink", ""))
    return "/compute/v1/projects/" + link.partition("/projects/")[2]


def _not_yet(error: ProviderError) -> bool:
    """Of a service that was enabled a moment ago, and of an account that is new to policies."""
    return error.code in _OUT or bool(_NEW.search(str(error)))


def _absent(error: ProviderError) -> bool:
    return error.code in NOT_FOUND or error.code in ("HTTP 404", "NOT_FOUND")


def _without(binding: dict[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    """A binding without our member, if it is of the role; None when it has nobody else."""
    members = list(binding.get("members") or ())
    if binding.get("role") != wanted["role"] or wanted["member"] not in members:
        return binding
    others = [one for one in members if one != wanted["member"]]
    return {**binding, "members": others} if others else None


def _is(binding: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    theirs = (binding.get("condition") or {}).get("expression", "")
    ours = wanted["condition"].get("expression", "")
    return bool(binding.get("role") == wanted["role"]) and bool(theirs == ours)
