"""Watch the cloud's notices: report new and withdrawn ones, and outages of the metadata service."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from providers.base import MetadataError, Notice, NoticeWatcher
from spotd.wire import DRILL_SOURCE

_LOG = logging.getLogger(__name__)

# One failed request is not an outage.
FAILURES_BEFORE_OUTAGE = 3
PAUSE_AFTER_FAILURE_S = 1.0
ACKNOWLEDGE_AFTER_S = 2.0


class NoWatcher:
    """For clouds that send no notices."""

    interval_s = 60.0

    def poll(self) -> Sequence[Notice]:
        return ()

    def acknowledge(self, notice: Notice) -> None:
        """Do nothing."""


def cloud_notices(notices: Iterable[Notice]) -> list[Notice]:
    """Return the notices that a cloud issued and may withdraw, without those of drills."""
    return [notice for notice in notices if notice.source != DRILL_SOURCE]


class NoticeListener(Protocol):
    """Receives changes of the notices; called from the watching thread."""

    def on_notice(self, notice: Notice) -> None:
        """A new notice."""
        ...

    def on_deadline(self, notice: Notice) -> None:
        """A known notice has a different deadline now."""
        ...

    def on_withdrawn(self, notice_id: str) -> None:
        """A known notice is missing from a successful response."""
        ...

    def on_metadata(self, up: bool, error: str) -> None:
        """The metadata service became unreachable (`up` is False), or answers again."""
        ...


class NoticeTracker:
    """Compares each response with the known notices; `known` are those in force at a restart."""

    def __init__(self, listener: NoticeListener, known: Iterable[Notice] = ()) -> None:
        self._listener = listener
        self._known = {notice.notice_id: notice for notice in known}
        self._failures = 0

    def update(self, notices: Sequence[Notice]) -> None:
        """Process a successful response: all notices in force."""
        if self._failures >= FAILURES_BEFORE_OUTAGE:
            self._listener.on_metadata(True, "")
        self._failures = 0
        current = {notice.notice_id: notice for notice in notices}
        # New notices first: time may be short.
        for notice in notices:
            previous = self._known.get(notice.notice_id)
            if previous is None:
                self._listener.on_notice(notice)
            elif previous.deadline_us != notice.deadline_us:
                self._listener.on_deadline(notice)
        for notice_id in self._known.keys() - current.keys():
            self._listener.on_withdrawn(notice_id)
        self._known = current

    def record_failure(self, error: str) -> None:
        """Count a failed request. It changes no notice."""
        self._failures += 1
        if self._failures == FAILURES_BEFORE_OUTAGE:
            self._listener.on_metadata(False, error)


def poll_notices(watcher: NoticeWatcher, tracker: NoticeTracker, ended: threading.Event) -> None:
    """Poll until `ended` is set; the body of the watching thread.

    The interval is measured from start to start, so after a slow poll the next one follows at once.
    """
    while not ended.is_set():
        started_s = time.monotonic()
        pause_s = _poll_once(watcher, tracker)
        ended.wait(max(started_s + pause_s - time.monotonic(), 0.0))


def _poll_once(watcher: NoticeWatcher, tracker: NoticeTracker) -> float:
    """Poll once; returns the seconds from its start to the next poll."""
    try:
        notices = watcher.poll()
    except MetadataError as error:
        tracker.record_failure(str(error))
        return PAUSE_AFTER_FAILURE_S
    except Exception as error:  # noqa: BLE001 - an unexpected document must not end the thread
        _LOG.exception("the notice watcher failed")
        tracker.record_failure(repr(error))
        return PAUSE_AFTER_FAILURE_S
    tracker.update(notices)
    return watcher.interval_s


def acknowledge(watcher: NoticeWatcher, notices: Iterable[Notice], ended: threading.Event) -> None:
    """Tell the cloud that it need not wait, after a short delay in which the last lines are
    sent."""
    ended.wait(ACKNOWLEDGE_AFTER_S)
    for notice in notices:
        _acknowledge(watcher, notice)


def _acknowledge(watcher: NoticeWatcher, notice: Notice) -> None:
    try:
        watcher.acknowledge(notice)
    except MetadataError as error:
        _LOG.warning("notice %s is not acknowledged: %s", notice.notice_id, error)
