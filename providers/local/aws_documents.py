"""EC2's instance metadata service. Only version 2 (IMDSv2): requests need a session token."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from providers.base import Notice, NoticeKind
from providers.local.documents import MachineFacts, MetadataReply, MetadataRequest, json_reply

_TTL_HEADER = "x-aws-ec2-metadata-token-ttl-seconds"
_TOKEN_HEADER = "x-aws-ec2-metadata-token"  # noqa: S105  the name of a header
_META = "/latest/meta-data/"
_TTL_MAX_S = 21600
_MAINTENANCE_S = 7200


def _error(status: int, title: str) -> MetadataReply:
    page = (
        '<?xml version="1.0" encoding="iso-8859-1"?>\n'
        '<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Transitional//EN"\n'
        '\t"http://www.w3.org/TR/xhtml1/DTD/xhtml1-transitional.dtd">\n'
        '<html xmlns="http://www.w3.org/1999/xhtml" xml:lang="en" lang="en">\n'
        f" <head>\n  <title>{status} - {title}</title>\n </head>\n"
        f" <body>\n  <h1>{status} - {title}</h1>\n </body>\n</html>\n"
    )
    return MetadataReply(status, page.encode(), "text/html")


def timestamp(at_us: int | None) -> str:
    """UTC time in whole seconds, rounded down so that a deadline is never later than promised."""
    return datetime.fromtimestamp((at_us or 0) // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _event_date(at_us: int) -> str:
    return datetime.fromtimestamp(at_us // 1_000_000, UTC).strftime("%d %b %Y %H:%M:%S GMT")


class AwsDocuments:
    """Tokens and documents of one EC2 machine."""

    def __init__(
        self,
        facts: MachineFacts,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._facts = facts
        self._monotonic = monotonic
        self._wall_us = wall_us
        self._lock = threading.Lock()
        self._tokens: dict[str, float] = {}
        self._notices: dict[str, tuple[Notice, int]] = {}

    def publish(self, notice: Notice) -> None:
        """Show the notice from now on."""
        with self._lock:
            self._notices[notice.notice_id] = (notice, self._wall_us())

    def withdraw(self, notice_id: str) -> None:
        """Stop showing the notice."""
        with self._lock:
            self._notices.pop(notice_id, None)

    def expire_tokens(self) -> None:
        """Invalidate all session tokens."""
        with self._lock:
            self._tokens.clear()

    def respond(self, request: MetadataRequest) -> MetadataReply:
        """Answer one request; never blocks."""
        if "x-forwarded-for" in request.headers:
            return _error(403, "Forbidden")
        with self._lock:
            if request.path == "/latest/api/token":
                return (
                    self._issue(request) if request.method == "PUT" else _error(405, "Not Allowed")
                )
            until = self._tokens.get(request.headers.get(_TOKEN_HEADER, ""), 0.0)
            if until <= self._monotonic():
                return _error(401, "Unauthorized")
            if request.method != "GET":
                return _error(405, "Not Allowed")
            if not request.path.startswith(_META):
                return _error(404, "Not Found")
            return self._read(request.path.removeprefix(_META).rstrip("/"))

    def _issue(self, request: MetadataRequest) -> MetadataReply:
        text = request.headers.get(_TTL_HEADER, "")
        if not text.isdecimal() or not 1 <= int(text) <= _TTL_MAX_S:
            return _error(400, "Bad Request")
        token = secrets.token_urlsafe(42)
        self._tokens[token] = self._monotonic() + int(text)
        return MetadataReply(
            200, token.encode(), headers={"X-Aws-Ec2-Metadata-Token-Ttl-Seconds": text}
        )

    def _read(self, key: str) -> MetadataReply:
        preempt = self._first(NoticeKind.PREEMPT)
        rebalance = self._first(NoticeKind.REBALANCE)
        match key:
            case "spot/instance-action" if preempt:
                at = timestamp(preempt[0].deadline_us)
                return json_reply({"action": "terminate", "time": at})
            case "spot/termination-time" if preempt:
                return MetadataReply(200, timestamp(preempt[0].deadline_us).encode())
            case "events/recommendations/rebalance" if rebalance:
                return json_reply({"noticeTime": timestamp(rebalance[1])})
            case "events/maintenance/scheduled":
                return json_reply([self._event(w) for w, _ in self._of(NoticeKind.MAINTENANCE)])
        plain = {
            "instance-id": self._facts.instance_id,
            "instance-life-cycle": "spot" if self._facts.spot else "on-demand",
            "instance-type": self._facts.instance_type,
            "placement/availability-zone": self._facts.zone,
            "placement/region": self._facts.region,
        }
        return MetadataReply(200, plain[key].encode()) if key in plain else _error(404, "Not Found")

    def _of(self, kind: NoticeKind) -> list[tuple[Notice, int]]:
        return [pair for pair in self._notices.values() if pair[0].kind is kind]

    def _first(self, kind: NoticeKind) -> tuple[Notice, int] | None:
        notices = self._of(kind)
        return notices[0] if notices else None

    @staticmethod
    def _event(notice: Notice) -> dict[str, str]:
        until_us = notice.deadline_us or 0
        return {
            "NotBefore": _event_date(until_us),
            "Code": "instance-retirement",
            "Description": "The instance is running on degraded hardware",
            "EventId": notice.notice_id,
            "NotAfter": _event_date(until_us + _MAINTENANCE_S * 1_000_000),
            "State": "active",
        }
