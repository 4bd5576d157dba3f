"""EC2's notices, read on the machine itself over IMDSv2 (never IMDSv1)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Any

from providers.base import MetadataError, Notice, NoticeKind
from providers.link_local import MetadataResponse, request, unexpected_status

LINK_LOCAL = "http://169.254.169.254"
_META = "/latest/meta-data"
_ACTIONS = frozenset({"terminate", "stop", "hibernate"})
_REFRESH_BEFORE_S = 15.0
_SLOW_RESPONSE_S = 0.25  # a preemption may have arrived during a slower request


def _parse_time_us(text: str, layout: str) -> int:
    try:
        moment = datetime.strptime(text, layout).replace(tzinfo=timezone.utc)
    except ValueError as error:
        raise MetadataError(f"not a date: {error}") from None
    return int(moment.timestamp() * 1_000_000)


def _parse(body: bytes, kind: type, path: str) -> Any:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, kind):
        raise MetadataError(f"{path}: not a JSON {kind.__name__}: {body[:200]!r}")
    return value


def _maintenance_notice(event: Any) -> Notice | None:
    """Parse a scheduled event; None for a completed one. Raises MetadataError."""
    if not isinstance(event, dict) or not isinstance(event.get("EventId"), str):
        raise MetadataError(f"not a scheduled event: {event!r}")
    if event.get("State", "active") != "active":
        return None
    return Notice(
        notice_id=f"aws-event-{event['EventId']}",
        kind=NoticeKind.MAINTENANCE,
        deadline_us=_parse_time_us(str(event.get("NotBefore")), "%d %b %Y %H:%M:%S %Z"),
        source="events/maintenance/scheduled",
        text=f"{event.get('Code', '')}: {event.get('Description', '')}",
    )


class Watcher:
    """Polls once a second; advisories (rebalance, maintenance) only every `advisories_every` polls.

    Advisories never delay a preemption: while there is one, they are not read, and after a slow or
    failed advisory request the preemption is checked again.

    A 404 means "no notice". Any other answer that is not a well-formed document raises
    MetadataError and is never taken for a preemption.
    """

    interval_s = 1.0

    def __init__(
        self,
        base_url: str = "",
        *,
        timeout_s: float = 2.0,
        token_ttl_s: int = 21600,
        advisories_every: int = 5,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._base_url = base_url or LINK_LOCAL
        self._timeout_s = timeout_s
        self._token_ttl_s = token_ttl_s
        self._advisories_every = advisories_every
        self._monotonic = monotonic
        self._token = ""
        self._token_until = 0.0
        self._advisories: list[Notice] = []
        self._until_advisories = 0

    def poll(self) -> Sequence[Notice]:
        """Return every notice in force now. Raises MetadataError."""
        urgent = self._instance_action()
        if not urgent and self._until_advisories == 0:
            urgent = self._renew_advisories()
        self._until_advisories = max(self._until_advisories - 1, 0)
        return [*urgent, *self._advisories]

    def _renew_advisories(self) -> list[Notice]:
        """Read the advisories. Returns a preemption that arrived in the meantime.

        Raises MetadataError unless there is one.
        """
        advisories: list[Notice] = []
        for read in (self._rebalance, self._maintenance_events):
            started_s, failure = self._monotonic(), None
            try:
                advisories += read()
            except MetadataError as error:
                failure = error
            if failure is not None or self._monotonic() - started_s > _SLOW_RESPONSE_S:
                urgent = self._instance_action()
                if urgent:
                    return urgent
            if failure is not None:
                raise failure
        self._advisories, self._until_advisories = advisories, self._advisories_every
        return []

    def acknowledge(self, notice: Notice) -> None:
        """Do nothing: EC2 has no such call."""

    def _instance_action(self) -> list[Notice]:
        path = f"{_META}/spot/instance-action"
        response = self._get(path)
        if response is None:
            return []
        value = _parse(response.body, dict, path)
        action, time_text = value.get("action"), value.get("time")
        if action not in _ACTIONS or not isinstance(time_text, str):
            raise MetadataError(f"{path}: not an instance action: {response.text[:200]!r}")
        return [
            Notice(
                notice_id=f"aws-{action}-{time_text}",
                kind=NoticeKind.PREEMPT,
                deadline_us=_parse_time_us(time_text, "%Y-%m-%dT%H:%M:%SZ"),
                source="spot/instance-action",
                text=f"EC2 will {action} this spot instance at {time_text}",
            )
        ]

    def _rebalance(self) -> list[Notice]:
        path = f"{_META}/events/recommendations/rebalance"
        response = self._get(path)
        if response is None:
            return []
        time_text = _parse(response.body, dict, path).get("noticeTime")
        if not isinstance(time_text, str):
            raise MetadataError(f"{path}: no noticeTime: {response.text[:200]!r}")
        return [
            Notice(
                notice_id=f"aws-rebalance-{time_text}",
                kind=NoticeKind.REBALANCE,
                source="events/recommendations/rebalance",
                text=f"EC2 rebalance recommendation of {time_text}",
            )
        ]

    def _maintenance_events(self) -> list[Notice]:
        path = f"{_META}/events/maintenance/scheduled"
        response = self._get(path)
        if response is None:
            return []
        notices = (_maintenance_notice(event) for event in _parse(response.body, list, path))
        return [notice for notice in notices if notice is not None]

    def _get(self, path: str) -> MetadataResponse | None:
        """Return the document, or None for 404. A refused token is renewed once."""
        if self._monotonic() >= self._token_until - _REFRESH_BEFORE_S:
            self._renew_token()
        response = self._request_with_token(path)
        if response.status == 401:
            self._renew_token()
            response = self._request_with_token(path)
        if response.status == 404:
            return None
        if response.status != 200:
            raise unexpected_status(response, path)
        return response

    def _request_with_token(self, path: str) -> MetadataResponse:
        headers = {"X-aws-ec2-metadata-token": self._token}
        return request(self._base_url, path, timeout_s=self._timeout_s, headers=headers)

    def _renew_token(self) -> None:
        path = "/latest/api/token"
        requested_s = self._monotonic()
        response = request(
            self._base_url,
            path,
            timeout_s=self._timeout_s,
            method="PUT",
            headers={"X-aws-ec2-metadata-token-ttl-seconds": str(self._token_ttl_s)},
        )
        if response.status != 200 or not response.text:
            raise unexpected_status(response, path)
        if not (response.text.isascii() and response.text.isprintable()):
            # Stored, it would make every request fail for hours.
            raise MetadataError(f"{path}: not a token: {response.text[:40]!r}")
        granted_ttl = response.headers.get("x-aws-ec2-metadata-token-ttl-seconds", "")
        valid = granted_ttl.isdecimal() and len(granted_ttl) < 10
        ttl_s = int(granted_ttl) if valid else self._token_ttl_s
        self._token, self._token_until = response.text, requested_s + ttl_s
