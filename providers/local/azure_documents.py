"""Azure's Scheduled Events and the parts of the instance document that machines need."""

from __future__ import annotations

import email.utils
import json
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from providers.base import Notice, NoticeKind
from providers.local.documents import MachineFacts, MetadataReply, MetadataRequest, json_reply

_CALLS_PER_S = 5
_EVENTS = {NoticeKind.PREEMPT: "Preempt", NoticeKind.MAINTENANCE: "Redeploy"}
_VERSIONS = ("2017-", "2018-", "2019-", "2020-", "2021-", "2023-", "2024-", "2025-")


@dataclass
class _Event:
    notice: Notice
    started: bool = False


def _error(status: int, text: str) -> MetadataReply:
    body = json.dumps({"error": text}, separators=(",", ":")).encode()
    return MetadataReply(status, body, "application/json")


class AzureDocuments:
    """The events of one Azure machine. `acknowledged` is called with the id of each event that the
    machine approves."""

    def __init__(
        self,
        facts: MachineFacts,
        acknowledged: Callable[[str], None] = lambda _notice_id: None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._facts = facts
        self._acknowledged = acknowledged
        self._monotonic = monotonic
        self._sleep = sleep
        self._lock = threading.Lock()
        self._incarnation = 1
        self._events: dict[str, _Event] = {}
        self._calls: deque[float] = deque(maxlen=_CALLS_PER_S)
        self._ready_at: float | None = None

    def publish(self, notice: Notice) -> None:
        """Show the event from now on."""
        with self._lock:
            self._events[notice.notice_id] = _Event(notice)
            self._incarnation += 1

    def withdraw(self, notice_id: str) -> None:
        """Stop showing the notice."""
        with self._lock:
            if self._events.pop(notice_id, None):
                self._incarnation += 1

    def expire_tokens(self) -> None:
        """Azure has no session tokens."""

    def respond(self, request: MetadataRequest) -> MetadataReply:
        """Answer one request. The first one enables the service and may be slow."""
        if (
            request.headers.get("metadata", "").lower() != "true"
            or "x-forwarded-for" in request.headers
        ):
            return _error(400, "Bad request. Required metadata header not specified")
        if not request.query.get("api-version", "").startswith(_VERSIONS):
            return _error(400, "Bad request. api-version is invalid or was not specified")
        if self._is_throttled():
            return _error(429, "Too many requests")
        return self._route(request)

    def _is_throttled(self) -> bool:
        with self._lock:
            now = self._monotonic()
            if len(self._calls) == _CALLS_PER_S and now - self._calls[0] < 1.0:
                return True
            self._calls.append(now)
            return False

    def _route(self, request: MetadataRequest) -> MetadataReply:
        match request.method, request.path.rstrip("/"):
            case "GET", "/metadata/scheduledevents":
                self._enable()
                return self._list_events()
            case "POST", "/metadata/scheduledevents":
                self._enable()
                return self._approve_events(request.body)
            case "GET", "/metadata/instance/compute":
                return json_reply(self._compute())
            case "GET", "/metadata/instance/compute/name":
                return MetadataReply(200, self._facts.name.encode())
        return _error(404, "Not found")

    def _enable(self) -> None:
        """Wait until the service is enabled, which the first call starts."""
        with self._lock:
            if self._ready_at is None:
                self._ready_at = self._monotonic() + self._facts.first_call_delay_s
            wait_s = self._ready_at - self._monotonic()
        if wait_s > 0:
            self._sleep(wait_s)

    def _list_events(self) -> MetadataReply:
        with self._lock:
            events = [self._event(event) for event in self._events.values()]
            return json_reply({"DocumentIncarnation": self._incarnation, "Events": events})

    def _event(self, event: _Event) -> dict[str, object]:
        notice = event.notice
        not_before = email.utils.formatdate((notice.deadline_us or 0) // 1_000_000, usegmt=True)
        return {
            "EventId": notice.notice_id,
            "EventStatus": "Started" if event.started else "Scheduled",
            "EventType": _EVENTS[notice.kind],
            "ResourceType": "VirtualMachine",
            "Resources": [self._facts.name],
            "NotBefore": "" if event.started else not_before,
            "Description": "",
            "EventSource": "Platform",
            "DurationInSeconds": -1,
        }

    def _approve_events(self, body: bytes) -> MetadataReply:
        try:
            approved = [str(row["EventId"]) for row in json.loads(body)["StartRequests"]]
        except (ValueError, TypeError, KeyError):
            return _error(400, "Bad request. The body is not a list of StartRequests")
        with self._lock:
            new = [i for i in approved if i in self._events and not self._events[i].started]
            for notice_id in new:
                self._events[notice_id].started = True
                self._incarnation += 1
        for notice_id in new:
            self._acknowledged(notice_id)
        return MetadataReply(200)

    def _compute(self) -> dict[str, object]:
        facts = self._facts
        return {
            "name": facts.name,
            "vmId": facts.instance_id,
            "location": facts.region,
            "zone": facts.zone,
            "vmSize": facts.instance_type,
            "priority": "Spot" if facts.spot else "Regular",
            "evictionPolicy": "Delete" if facts.spot else "",
        }
