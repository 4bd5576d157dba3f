"""Compute Engine's metadata server: a tree of values, with calls that wait for a change."""

from __future__ import annotations

import hashlib
import json
import threading
from typing import TypeAlias

from providers.base import Notice, NoticeKind
from providers.local.documents import MachineFacts, MetadataReply, MetadataRequest

Tree: TypeAlias = "dict[str, str | int | Tree]"

_ROOT = "/computeMetadata/v1/"
_WAIT_MAX_S = 3600.0
_GOOGLE = {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM"}


def _camel(key: str) -> str:
    first, *rest = key.split("-")
    return first + "".join(word.capitalize() for word in rest)


class Attributes(dict[str, "str | int | Tree"]):
    """Custom metadata of a machine or project. Its keys keep their spelling in JSON."""


def _as_json(value: str | int | Tree) -> object:
    if isinstance(value, Attributes):
        return dict(value)
    if isinstance(value, dict):
        return {_camel(key): _as_json(value[key]) for key in sorted(value)}
    return value


def _listing(tree: Tree) -> str:
    rows = [f"{key}/" if isinstance(value, dict) else key for key, value in tree.items()]
    return "".join(f"{row}\n" for row in sorted(rows))


class GcpDocuments:
    """The metadata of one Compute Engine machine."""

    def __init__(self, facts: MachineFacts) -> None:
        self._facts = facts
        self._changed = threading.Condition()
        self._notices: dict[str, Notice] = {}
        self._preempted = False

    def publish(self, notice: Notice) -> None:
        """Show the notice from now on and wake waiting requests."""
        with self._changed:
            self._notices[notice.notice_id] = notice
            self._preempted |= notice.kind is NoticeKind.PREEMPT
            self._changed.notify_all()

    def withdraw(self, notice_id: str) -> None:
        """Stop showing the notice. A preemption stays visible: Google never withdraws one."""
        with self._changed:
            self._notices.pop(notice_id, None)
            self._changed.notify_all()

    def expire_tokens(self) -> None:
        """Google has no session tokens."""

    def respond(self, request: MetadataRequest) -> MetadataReply:
        """Answer one request; with `wait_for_change`, once the value changes."""
        if (
            request.headers.get("metadata-flavor") != "Google"
            or "x-forwarded-for" in request.headers
        ):
            page = b"Missing Metadata-Flavor:Google header."
            return MetadataReply(403, page, "text/html; charset=UTF-8", _GOOGLE)
        if request.method != "GET":
            return MetadataReply(405, b"", "text/html; charset=UTF-8", _GOOGLE)
        if not request.path.startswith(_ROOT):
            return self._missing()
        with self._changed:
            reply = self._render(request)
            if request.query.get("wait_for_change", "").lower() != "true" or reply.status != 200:
                return reply
            last_etag = request.query.get("last_etag", reply.headers["ETag"])
            timeout = request.query.get("timeout_sec", "")
            limit_s = min(float(timeout), _WAIT_MAX_S) if timeout.isdecimal() else _WAIT_MAX_S
            self._changed.wait_for(
                lambda: self._render(request).headers["ETag"] != last_etag, limit_s
            )
            return self._render(request)

    def _missing(self) -> MetadataReply:
        return MetadataReply(404, b"", "text/html; charset=UTF-8", _GOOGLE)

    def _render(self, request: MetadataRequest) -> MetadataReply:
        path = request.path.removeprefix(_ROOT)
        value: str | int | Tree = self._values()
        for key in filter(None, path.split("/")):
            if not isinstance(value, dict) or key not in value:
                return self._missing()
            value = value[key]
        recursive = request.query.get("recursive", "").lower() == "true"
        if isinstance(value, dict) and path and not path.endswith("/"):
            return MetadataReply(301, b"", headers={"Location": f"{request.path}/", **_GOOGLE})
        if request.query.get("alt", "json" if recursive else "text") == "json":
            document = (
                _as_json(value) if recursive or not isinstance(value, dict) else sorted(value)
            )
            body, kind = json.dumps(document, separators=(",", ":")), "application/json"
        else:
            body = _listing(value) if isinstance(value, dict) else str(value)
            kind = "application/text"
        etag = hashlib.sha256(body.encode()).hexdigest()[:16]
        return MetadataReply(200, body.encode(), kind, {"ETag": etag, **_GOOGLE})

    def _values(self) -> Tree:
        kinds = {notice.kind for notice in self._notices.values()}
        under_maintenance = NoticeKind.MAINTENANCE in kinds
        facts = self._facts
        number = int(hashlib.sha256(facts.instance_id.encode()).hexdigest()[:15], 16)
        return {
            "instance": {
                "id": number,
                "name": facts.name,
                "zone": f"projects/1/zones/{facts.zone}",
                "machine-type": f"projects/1/machineTypes/{facts.instance_type}",
                "preempted": "TRUE" if self._preempted else "FALSE",
                "maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE"
                if under_maintenance
                else "NONE",
                "scheduling": {
                    "automatic-restart": "FALSE",
                    "on-host-maintenance": "TERMINATE",
                    "preemptible": "TRUE" if facts.spot else "FALSE",
                },
                "attributes": Attributes(),
            },
            "project": {"project-id": "local", "numeric-project-id": 1},
        }
