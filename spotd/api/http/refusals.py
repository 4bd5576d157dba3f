"""Audit of refused requests, limited per user.

Anybody who can open the socket can cause any number of refusals.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from spotd.domain.units import S
from spotd.store.audit import AuditRow
from spotd.store.errors import StoreError

ONE_BY_ONE = 5  # refusals per user and minute with a line each; one more line counts the rest
MINUTE_S = 60.0


@dataclass
class _Minute:
    since_us: int
    last: AuditRow
    count: int = 0


class Refusals:
    """Rate-limited audit of refusals.

    Nothing is ever deleted from the audit, so no user may fill the disk with it. `write` adds an
    audit line. Thread-safe.
    """

    def __init__(self, write: Callable[[AuditRow], None]) -> None:
        self._write = write
        self._lock = threading.Lock()
        self._minutes: dict[tuple[int, str], _Minute] = {}  # by uid and name

    def add(self, row: AuditRow, now_us: int) -> None:
        """Record one refusal. Raises StoreError."""
        with self._lock:
            minute = self._minutes.setdefault((row.uid, row.user), _Minute(now_us, row))
            minute.count, minute.last = minute.count + 1, row
            has_own_line = minute.count <= ONE_BY_ONE
        if has_own_line:
            self._write(row)

    def flush(self, now_us: int) -> None:
        """Write the counts of minutes that are over.

        Called before every request, so that a reader of the audit finds them. Raises StoreError.
        """
        with self._lock:
            expired = [
                user
                for user, minute in self._minutes.items()
                if not 0 <= now_us - minute.since_us < MINUTE_S * S
            ]
            minutes = [self._minutes.pop(user) for user in expired]
        while minutes:
            try:
                self._write_count(minutes[-1])
            except StoreError:
                with self._lock:
                    for minute in minutes:
                        self._minutes.setdefault((minute.last.uid, minute.last.user), minute)
                raise
            minutes.pop()

    def _write_count(self, minute: _Minute) -> None:
        suppressed = minute.count - ONE_BY_ONE
        if suppressed > 0:
            message = f"{suppressed} more in one minute, the last of them: {minute.last.action}"
            self._write(replace(minute.last, action="refusals", target="", text=message))
