"""Cloud-side preemption notices of Compute Engine, read from its operations. They arrive even when
SSH to the machine fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from providers.base import Notice, NoticeKind, parse_timestamp_us
from providers.gcp.clients import Clients
from providers.gcp.names import target_of
from providers.gcp.operations import time_before

OPERATION_TYPE = "compute.instances.preempted"
FIRST_WINDOW = timedelta(minutes=10)
OVERLAP = timedelta(minutes=2)  # an operation may become visible after a newer one
SHUTDOWN_US = 30_000_000  # remaining time, at most, once the shutdown has begun


class Preemptions:
    """Preemptions since the last read."""

    def __init__(self, clients: Clients, wall_s: Callable[[], float] = time.time) -> None:
        self._clients = clients
        self._wall_s = wall_s
        self._lock = threading.Lock()
        self._last_read_s = 0.0

    def read(self) -> list[Notice]:
        """Return the preemptions of all machines in the project, in one call. Raises
        ProviderError."""
        now_s = self._wall_s()
        with self._lock:
            since = (
                time_before(self._last_read_s, OVERLAP)
                if self._last_read_s
                else time_before(now_s, FIRST_WINDOW)
            )
        filter_ = f'(operationType = "{OPERATION_TYPE}") (insertTime > "{since}")'
        rows_by_scope = self._clients.aggregated("GlobalOperations", "operations", filter_)
        with self._lock:
            self._last_read_s = max(self._last_read_s, now_s)
        return read_preemptions(row for _, rows in rows_by_scope for row in rows)


def read_preemptions(operations: Iterable[Any]) -> list[Notice]:
    """Return the notices in these operations.

    A machine is preempted once, so the id is the same as in its metadata service
    (providers/gcp/notice.py).
    """
    return [
        Notice(
            notice_id="gcp-preempted",
            kind=NoticeKind.PREEMPT,
            deadline_us=parse_timestamp_us(row.insert_time) + SHUTDOWN_US,
            source="operation",
            instance_id=target_of(row.target_link),
            text=row.status_message or "Compute Engine preempts this instance",
        )
        for row in operations
        if row.operation_type == OPERATION_TYPE and target_of(row.target_link)
    ]
