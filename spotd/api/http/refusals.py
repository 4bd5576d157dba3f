"""Refusals on record, of which whoever may open the socket can cause any number."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from spotd.domain.units import S
from spotd.store.interface import AuditRow, StoreError

ONE_BY_ONE = 5  # of one user in one minute; the others are a number in one line more
MINUTE_S = 60.0


@dataclass
class _Minute:
    since_us: int
    last: AuditRow
    count: int = 0


class Refusals:
    """Nothing is ever deleted from the audit: nobody may fill the disk with it. `write` puts a line
    on record. Any thread may call."""

    def __init__(self, write: Callable[[AuditRow], None]) -> None:
        self._write = write
        self._lock = threading.Lock()
        self._minutes: dict[int, _Minute] = {}  # by uid

    def add(self, row: AuditRow, now_us: int) -> None:
        """Raises StoreError."""
        with self._lock:
            minute = self._minutes.setdefault(row.uid, _Minute(now_us, row))
            minute.count, minute.last = minute.count + 1, row
            told = minute.count <= ONE_BY_ONE
        if told:
            self._write(row)

    def settle(self, now_us: int) -> None:
        """Put on record how many more there were in minutes that are over: called before every
        request, so that who reads the audit finds them. Raises StoreError."""
        with self._lock:
            over = [
                uid
                for uid, minute in self._minutes.items()
                if not 0 <= now_us - minute.since_us < MINUTE_S * S
            ]
            minutes = [self._minutes.pop(uid) for uid in over]
        while minutes:
            try:
                self._sum_up(minutes[-1])
            except StoreError:
                with self._lock:
                    for minute in minutes:
                        self._minutes.setdefault(minute.last.uid, minute)
                raise
            minutes.pop()

    def _sum_up(self, minute: _Minute) -> None:
        more = minute.count - ONE_BY_ONE
        if more > 0:
            text = f"{more} more in one minute, the last of them: {minute.last.action}"
            self._write(replace(minute.last, action="refusals", target="", text=text))
