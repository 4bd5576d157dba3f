"""Compute Engine's notices, read on the machine itself.

`instance/preempted` is read by long poll, so that a preemption is received at the moment it is
published. `instance/maintenance-event` is read plainly between two long polls: it warns an hour
ahead on machines that maintenance terminates, so that a second thread, or a recursive long poll
that wakes at every change of any attribute, would gain nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from urllib.parse import quote

from providers.base import MetadataError, Notice, NoticeKind
from providers.link_local import MetadataResponse, request, unexpected_status

LINK_LOCAL = "http://169.254.169.254"
_META = "/computeMetadata/v1/instance"
# A custom attribute that launch.py sets to preemptionNoticeDuration in seconds: the metadata server
# has no key of its own for it.
NOTICE_ATTRIBUTE = "spotd-notice-s"
MIN_NOTICE_S = 30.0  # of a machine without the attribute, and the time left after the notice
_MOST_S = 3600
_HEADERS = {"Metadata-Flavor": "Google"}
_MAINTENANCE_NOTICE_S = 3600
# Live migration keeps the machine: not a notice.
_HARMLESS = frozenset({"NONE", "MIGRATE_ON_HOST_MAINTENANCE"})


class Watcher:
    """Returns at a change, or after `wait_s` without one.

    `notice_s` is the time between `preempted` and the end. By default it comes from the machine's
    NOTICE_ATTRIBUTE (120 s, its preemptionNoticeDuration), and is MIN_NOTICE_S without one, or for
    a preemption that may have begun before the first poll. A 503, which the server returns during
    maintenance, is an outage like any other (MetadataError).
    """

    interval_s = 0.0

    def __init__(
        self,
        base_url: str = "",
        *,
        timeout_s: float = 2.0,
        wait_s: int = 10,
        notice_s: float | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._base_url = base_url or LINK_LOCAL
        self._timeout_s = timeout_s
        self._wait_s = wait_s
        self._notice_s = notice_s
        self._wall = wall
        self._etag = ""
        self._preempted: Notice | None = None
        self._maintenance: Notice | None = None

    def poll(self) -> Sequence[Notice]:
        """Return every notice in force now. Raises MetadataError."""
        if self._notice_s is None:
            self._notice_s = self._read_notice_s()
        try:
            self._read_preempted()
        except MetadataError:
            # The state is unknown now, and a long poll with an old etag might hang.
            self._etag = ""
            raise
        if self._preempted is None:
            self._read_maintenance()
        return [notice for notice in (self._preempted, self._maintenance) if notice is not None]

    def acknowledge(self, notice: Notice) -> None:
        """Do nothing: Compute Engine has no such call."""

    def _read_notice_s(self) -> float | None:
        """Return None while the server does not answer: current notices matter more."""
        path = f"{_META}/attributes/{NOTICE_ATTRIBUTE}"
        try:
            answer = request(self._base_url, path, timeout_s=self._timeout_s, headers=_HEADERS)
        except MetadataError:
            return None
        if answer.status not in (200, 404):
            return None
        text = answer.text if answer.status == 200 else ""
        seconds = int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 0
        return max(MIN_NOTICE_S, float(min(seconds, _MOST_S)))

    def _read_preempted(self) -> None:
        path = f"{_META}/preempted"
        timeout_s, waited = self._timeout_s, bool(self._etag)
        if self._etag:
            # The first read is a plain one: without an etag, a long poll waits for the next change.
            path += f"?wait_for_change=true&timeout_sec={self._wait_s}"
            path += f"&last_etag={quote(self._etag, safe='')}"
            timeout_s += self._wait_s
        answer = self._get(path, timeout_s)
        value = answer.text.upper()
        if value not in {"TRUE", "FALSE"}:
            raise MetadataError(f"{path}: neither TRUE nor FALSE: {answer.text[:200]!r}")
        # Without an etag the next poll cannot wait at the server, and must not spin either.
        self._etag = answer.headers.get("etag", "")
        self.interval_s = 0.0 if self._etag else 1.0
        if value == "FALSE":
            self._preempted = None
        elif self._preempted is None:
            notice_s = (self._notice_s or MIN_NOTICE_S) if waited else MIN_NOTICE_S
            self._preempted = Notice(
                notice_id="gcp-preempted",
                kind=NoticeKind.PREEMPT,
                deadline_us=self._from_now_us(notice_s),
                source="instance/preempted",
                text=f"Compute Engine preempts this instance within {notice_s:g} s",
            )

    def _read_maintenance(self) -> None:
        path = f"{_META}/maintenance-event"
        answer = self._get(path, self._timeout_s)
        if answer.text in _HARMLESS:
            self._maintenance = None
        elif answer.text != "TERMINATE_ON_HOST_MAINTENANCE":
            raise MetadataError(f"{path}: unknown event {answer.text[:200]!r}")
        else:
            # The etag distinguishes events, also after a restart of the agent.
            notice_id = f"gcp-maintenance-{answer.headers.get('etag', '')}"
            if self._maintenance is None or self._maintenance.notice_id != notice_id:
                self._maintenance = Notice(
                    notice_id=notice_id,
                    kind=NoticeKind.MAINTENANCE,
                    deadline_us=self._from_now_us(_MAINTENANCE_NOTICE_S),
                    source="instance/maintenance-event",
                    text="Compute Engine ends this instance for host maintenance within the hour",
                )

    def _get(self, path: str, timeout_s: float) -> MetadataResponse:
        answer = request(self._base_url, path, timeout_s=timeout_s, headers=_HEADERS)
        if answer.status != 200 or answer.headers.get("metadata-flavor", "Google") != "Google":
            raise unexpected_status(answer, path)
        return answer

    def _from_now_us(self, seconds: float) -> int:
        return int((self._wall() + seconds) * 1_000_000)
