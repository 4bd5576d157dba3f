"""Azure's Scheduled Events, read on the machine itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from providers.base import MetadataError, Notice, NoticeKind
from providers.link_local import MetadataResponse, request, unexpected_status

LINK_LOCAL = "http://169.254.169.254"
_PATH = "/metadata/scheduledevents?api-version=2020-07-01"
_HEADERS = {"Metadata": "true"}
# Other events keep the machine: Freeze is a pause of seconds.
_KINDS = {
    "Preempt": NoticeKind.PREEMPT,
    "Terminate": NoticeKind.MAINTENANCE,
    "Redeploy": NoticeKind.MAINTENANCE,
    "Reboot": NoticeKind.MAINTENANCE,
}


def _deadline_us(event: dict[str, Any]) -> int | None:
    """Return None once the event has started: it may end the machine at any moment."""
    text = event.get("NotBefore")
    if event.get("EventStatus") == "Started" or text == "":
        return None
    try:
        moment = datetime.strptime(str(text), "%a, %d %b %Y %H:%M:%S %Z").replace(
            tzinfo=timezone.utc
        )
    except ValueError as error:
        raise MetadataError(f"NotBefore: {error}") from None
    return int(moment.timestamp() * 1_000_000)


class Watcher:
    """Polls once a second, which also keeps the feature enabled (it is disabled after a day without
    calls).

    The first call of a machine may take two minutes (`first_timeout_s`). `vm_name` filters out
    events of other machines in the same set. An event that is gone has been withdrawn.
    """

    interval_s = 1.0

    def __init__(
        self,
        base_url: str = "",
        *,
        timeout_s: float = 5.0,
        first_timeout_s: float = 130.0,
        vm_name: str = "",
    ) -> None:
        self._base_url = base_url or LINK_LOCAL
        self._timeout_s = timeout_s
        self._first_timeout_s = first_timeout_s
        self._vm_name = vm_name
        self._answered = False

    def poll(self) -> Sequence[Notice]:
        """Return every event in force now.

        Raises MetadataError, also for a single malformed event, unless another event is a
        preemption.
        """
        response = self._request("GET")
        self._answered = True
        try:
            document = json.loads(response.body)
        except (ValueError, RecursionError):
            document = None
        events = document.get("Events") if isinstance(document, dict) else None
        if not isinstance(events, list):
            raise MetadataError(f"no list of events: {response.text[:200]!r}")
        notices: list[Notice] = []
        failure: MetadataError | None = None
        for event in events:
            try:
                notice = self._notice(event)
            except MetadataError as error:
                failure = error
                continue
            if notice is not None:
                notices.append(notice)
        if failure is not None and all(
            notice_.kind is not NoticeKind.PREEMPT for notice_ in notices
        ):
            raise failure
        return notices

    def acknowledge(self, notice: Notice) -> None:
        """Let Azure start the event now, because the machine needs no more time."""
        body = json.dumps({"StartRequests": [{"EventId": notice.notice_id}]}).encode()
        self._request("POST", body)

    def _request(self, method: str, body: bytes | None = None) -> MetadataResponse:
        timeout_s = self._timeout_s if self._answered else self._first_timeout_s
        response = request(
            self._base_url, _PATH, timeout_s=timeout_s, method=method, headers=_HEADERS, body=body
        )
        if response.status != 200:
            raise unexpected_status(response, _PATH)
        return response

    def _notice(self, event: Any) -> Notice | None:
        if not isinstance(event, dict) or not isinstance(event.get("EventId"), str):
            raise MetadataError(f"not an event: {event!r}")
        kind_name, resources = event.get("EventType"), event.get("Resources", [])
        if not isinstance(kind_name, str) or not isinstance(resources, list):
            raise MetadataError(f"not an event: {event!r}")
        kind = _KINDS.get(kind_name)
        if kind is None or (self._vm_name and self._vm_name not in resources):
            return None
        return Notice(
            notice_id=event["EventId"],
            kind=kind,
            deadline_us=_deadline_us(event),
            source="scheduledevents",
            text=f"{kind_name}: {event.get('Description', '')}".rstrip(": "),
        )
