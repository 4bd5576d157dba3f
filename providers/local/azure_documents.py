"""Azure's Scheduled Events, and the little of the instance document that a machine needs."""

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


def _refuse(status: int, text: str) -> MetadataReply:
    body = json.dumps({"error": text}, separators=(",", ":")).encode()
    return MetadataReply(status, body, "application/json")


class AzureDocuments:
    """The events of one Azure machine; `acknowledged` hears which the machine has agreed to."""

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
        """Show it no more."""
        with self._lock:
            if self._events.pop(notice_id, None):
                self._incarnation += 1

    def forget_tokens(self) -> None:
        """There are none."""

    def respond(self, ask: MetadataRequest) -> MetadataReply:
        """Answer one request; the first one of a machine's life may be slow."""
        if ask.headers.get("metadata", "").lower() != "true" or "x-forwarded-for" in ask.headers:
            return _refuse(400, "Bad request. Required metadata header not specified")
        if not ask.query.get("api-version", "").startswith(_VERSIONS):
            return _refuse(400, "Bad request. api-version is invalid or was not specified")
        if self._too_often():
            return _refuse(429, "Too many requests")
        return self._route(ask)

    def _too_often(self) -> bool:
        with self._lock:
            now = self._monotonic()
            if len(self._calls) == _CALLS_PER_S and now - self._calls[0] < 1.0:
                return True
            self._calls.append(now)
            return False

    def _route(self, ask: MetadataRequest) -> MetadataReply:
        match ask.method, ask.path.rstrip("/"):
            case "GET", "/metadata/scheduledevents":
                self._wake()
                return self._scheduled()
            case "POST", "/metadata/scheduledevents":
                self._wake()
                return self._start(ask.body)
            case "GET", "/metadata/instance/compute":
                return json_reply(self._compute())
            case "GET", "/metadata/instance/compute/name":
                return MetadataReply(200, self._facts.name.encode())
        return _refuse(404, "Not found")

    def _wake(self) -> None:
        """The feature is switched on by the first call, which takes its time."""
        with self._lock:
            if self._ready_at is None:
                self._ready_at = self._monotonic() + self._facts.first_call_delay_s
            wait_s = self._ready_at - self._monotonic()
        if wait_s > 0:
            self._sleep(wait_s)

    def _scheduled(self) -> MetadataReply:
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

    def _start(self, body: bytes) -> MetadataReply:
        try:
            wanted = [str(row["EventId"]) for row in json.loads(body)["StartRequests"]]
        except (ValueError, TypeError, KeyError):
            return _refuse(400, "Bad request. The body is not a list of StartRequests")
        with self._lock:
            fresh = [i for i in wanted if i in self._events and not self._events[i].started]
            for notice_id in fresh:
                self._events[notice_id].started = True
                self._incarnation += 1
        for notice_id in fresh:
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
