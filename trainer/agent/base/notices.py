"""Watching the cloud's warnings: what is new, what was withdrawn, and when nobody answers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from providers.base import MetadataError, Notice, NoticeWatcher
from spotd.wire import DRILL_SOURCE

_LOG = logging.getLogger(__name__)

# A single lost answer is no outage, and outages are for people to read about.
FAILURES_OF_AN_OUTAGE = 3
PAUSE_AFTER_FAILURE_S = 1.0
ACKNOWLEDGE_AFTER_S = 2.0


class NoWatcher:
    """For clouds that warn nobody."""

    interval_s = 60.0

    def poll(self) -> Sequence[Notice]:
        return ()

    def acknowledge(self, notice: Notice) -> None:
        """There is nothing to acknowledge."""


def from_clouds(notices: Iterable[Notice]) -> list[Notice]:
    """Those that a cloud gave, and may take back; not what a drill plays."""
    return [notice for notice in notices if notice.source != DRILL_SOURCE]


class NoticeListener(Protocol):
    """Who wants to know; called from the watching thread."""

    def on_notice(self, notice: Notice) -> None:
        """A warning not seen before."""
        ...

    def on_deadline(self, notice: Notice) -> None:
        """A known warning has another deadline now."""
        ...

    def on_withdrawn(self, notice_id: str) -> None:
        """A known warning is missing from a good answer."""
        ...

    def on_metadata(self, up: bool, error: str) -> None:
        """An outage began, or ended."""
        ...


class NoticeBook:
    """Compares each answer with what is known. `known` are the notices in force at a restart."""

    def __init__(self, listener: NoticeListener, known: Iterable[Notice] = ()) -> None:
        self._listener = listener
        self._known = {notice.notice_id: notice for notice in known}
        self._failures = 0

    def hear(self, notices: Sequence[Notice]) -> None:
        """A good answer: every notice in force."""
        if self._failures >= FAILURES_OF_AN_OUTAGE:
            self._listener.on_metadata(True, "")
        self._failures = 0
        found = {notice.notice_id: notice for notice in notices}
        # News first: it may have a machine to save.
        for notice in notices:
            before = self._known.get(notice.notice_id)
            if before is None:
                self._listener.on_notice(notice)
            elif before.deadline_us != notice.deadline_us:
                self._listener.on_deadline(notice)
        for notice_id in self._known.keys() - found.keys():
            self._listener.on_withdrawn(notice_id)
        self._known = found

    def miss(self, error: str) -> None:
        """No good answer: nothing is known to have changed."""
        self._failures += 1
        if self._failures == FAILURES_OF_AN_OUTAGE:
            self._listener.on_metadata(False, error)


def watch(watcher: NoticeWatcher, book: NoticeBook, ended: threading.Event) -> None:
    """Poll until `ended`; the body of the watching thread. A poll that took long is followed by the
    next one at once: pauses count from beginning to beginning."""
    while not ended.is_set():
        began_s = time.monotonic()
        pause_s = _round(watcher, book)
        ended.wait(max(began_s + pause_s - time.monotonic(), 0.0))


def _round(watcher: NoticeWatcher, book: NoticeBook) -> float:
    """One poll; returns the seconds from its beginning to the next."""
    try:
        notices = watcher.poll()
    except MetadataError as error:
        book.miss(str(error))
        return PAUSE_AFTER_FAILURE_S
    except Exception as error:  # noqa: BLE001 - an unforeseen document must not end the watching
        _LOG.exception("the notice watcher failed")
        book.miss(repr(error))
        return PAUSE_AFTER_FAILURE_S
    book.hear(notices)
    return watcher.interval_s


def acknowledge(watcher: NoticeWatcher, notices: Iterable[Notice], ended: threading.Event) -> None:
    """Tell the cloud, a little later, that it need not wait: our last lines are out by then."""
    ended.wait(ACKNOWLEDGE_AFTER_S)
    for notice in notices:
        _acknowledge(watcher, notice)


def _acknowledge(watcher: NoticeWatcher, notice: Notice) -> None:
    try:
        watcher.acknowledge(notice)
    except MetadataError as error:
        _LOG.warning("notice %s is not acknowledged: %s", notice.notice_id, error)
