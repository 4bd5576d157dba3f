"""EC2's warnings, read on the machine itself over IMDSv2 (never IMDSv1)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Any

from providers.base import MetadataError, Notice, NoticeKind
from providers.link_local import Answer, ask, refuse

LINK_LOCAL = "http://169.254.169.254"
_META = "/latest/meta-data"
_ACTIONS = frozenset({"terminate", "stop", "hibernate"})
_REFRESH_BEFORE_S = 15.0
_SLOW_S = 0.25  # an answer that took longer may have hidden a preemption


def _moment_us(text: str, layout: str) -> int:
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


def _maintenance(event: Any) -> Notice | None:
    """One scheduled event; None for one that is over. Raises MetadataError."""
    if not isinstance(event, dict) or not isinstance(event.get("EventId"), str):
        raise MetadataError(f"not a scheduled event: {event!r}")
    if event.get("State", "active") != "active":
        return None
    return Notice(
        notice_id=f"aws-event-{event['EventId']}",
        kind=NoticeKind.MAINTENANCE,
        deadline_us=_moment_us(str(event.get("NotBefore")), "%d %b %Y %H:%M:%S %Z"),
        source="events/maintenance/scheduled",
        text=f"{event.get('Code', '')}: {event.get('Description', '')}",
    )


class Watcher:
    """Polls once a second; advisories (rebalance, maintenance) only every `advisories_every` polls.
    Nobody waits for them to hear of a preemption: where one is, they are not asked for, and an
    answer of theirs that is slow or wrong is followed by another look.

    A 404 says "no warning". Anything that is neither that nor a well-formed document raises
    MetadataError, and is never taken for a preemption.
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
        """Every warning in force now. Raises MetadataError."""
        urgent = self._instance_action()
        if not urgent and self._until_advisories == 0:
            urgent = self._renew_advisories()
        self._until_advisories = max(self._until_advisories - 1, 0)
        return [*urgent, *self._advisories]

    def _renew_advisories(self) -> list[Notice]:
        """What became urgent meanwhile. Raises MetadataError, but not where something did."""
        found: list[Notice] = []
        for read in (self._rebalance, self._scheduled):
            asked_at, trouble = self._monotonic(), None
            try:
                found += read()
            except MetadataError as error:
                trouble = error
            if trouble is not None or self._monotonic() - asked_at > _SLOW_S:
                urgent = self._instance_action()
                if urgent:
                    return urgent
            if trouble is not None:
                raise trouble
        self._advisories, self._until_advisories = found, self._advisories_every
        return []

    def acknowledge(self, notice: Notice) -> None:
        """EC2 has no such call."""

    def _instance_action(self) -> list[Notice]:
        path = f"{_META}/spot/instance-action"
        answer = self._get(path)
        if answer is None:
            return []
        value = _parse(answer.body, dict, path)
        action, at = value.get("action"), value.get("time")
        if action not in _ACTIONS or not isinstance(at, str):
            raise MetadataError(f"{path}: not an instance action: {answer.text[:200]!r}")
        return [
            Notice(
                notice_id=f"aws-{action}-{at}",
                kind=NoticeKind.PREEMPT,
                deadline_us=_moment_us(at, "%Y-%m-%dT%H:%M:%SZ"),
                source="spot/instance-action",
                text=f"EC2 will {action} this spot instance at {at}",
            )
        ]

    def _rebalance(self) -> list[Notice]:
        path = f"{_META}/events/recommendations/rebalance"
        answer = self._get(path)
        if answer is None:
            return []
        at = _parse(answer.body, dict, path).get("noticeTime")
        if not isinstance(at, str):
            raise MetadataError(f"{path}: no noticeTime: {answer.text[:200]!r}")
        return [
            Notice(
                notice_id=f"aws-rebalance-{at}",
                kind=NoticeKind.REBALANCE,
                source="events/recommendations/rebalance",
                text=f"EC2 rebalance recommendation of {at}",
            )
        ]

    def _scheduled(self) -> list[Notice]:
        path = f"{_META}/events/maintenance/scheduled"
        answer = self._get(path)
        if answer is None:
            return []
        found = (_maintenance(event) for event in _parse(answer.body, list, path))
        return [notice for notice in found if notice is not None]

    def _get(self, path: str) -> Answer | None:
        """The document, or None for 404. A refused token is renewed once."""
        if self._monotonic() >= self._token_until - _REFRESH_BEFORE_S:
            self._renew_token()
        answer = self._ask_with_token(path)
        if answer.status == 401:
            self._renew_token()
            answer = self._ask_with_token(path)
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise refuse(answer, path)
        return answer

    def _ask_with_token(self, path: str) -> Answer:
        headers = {"X-aws-ec2-metadata-token": self._token}
        return ask(self._base_url, path, timeout_s=self._timeout_s, headers=headers)

    def _renew_token(self) -> None:
        path = "/latest/api/token"
        asked_at = self._monotonic()
        answer = ask(
            self._base_url,
            path,
            timeout_s=self._timeout_s,
            method="PUT",
            headers={"X-aws-ec2-metadata-token-ttl-seconds": str(self._token_ttl_s)},
        )
        if answer.status != 200 or not answer.text:
            raise refuse(answer, path)
        if not (answer.text.isascii() and answer.text.isprintable()):
            # Kept, it would be refused for as long as it is valid, which is hours.
            raise MetadataError(f"{path}: not a token: {answer.text[:40]!r}")
        granted = answer.headers.get("x-aws-ec2-metadata-token-ttl-seconds", "")
        known = granted.isdecimal() and len(granted) < 10
        ttl_s = int(granted) if known else self._token_ttl_s
        self._token, self._token_until = answer.text, asked_at + ttl_s
