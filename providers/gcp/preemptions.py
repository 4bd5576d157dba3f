"""What Compute Engine tells of preemptions to whoever asks the cloud and not the machine: its own
operations. They reach us with the machine's SSH dead."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from providers.base import Notice, NoticeKind
from providers.gcp.clients import Clients
from providers.gcp.names import target_of
from providers.gcp.operations import since, us_of

KIND = "compute.instances.preempted"
FIRST_LOOK = timedelta(minutes=10)
OVERLAP = timedelta(minutes=2)  # an operation may be shown later than one that is younger
SOFT_OFF_US = 30_000_000  # what is left, at most, once the machine is being shut down


class Preemptions:
    """Those since the last look."""

    def __init__(self, clients: Clients, wall_s: Callable[[], float] = time.time) -> None:
        self._clients = clients
        self._wall_s = wall_s
        self._lock = threading.Lock()
        self._looked_s = 0.0

    def read(self) -> list[Notice]:
        """One call, whatever the number of machines; of everybody's in the project. Raises
        ProviderError."""
        now_s = self._wall_s()
        with self._lock:
            after = since(self._looked_s, OVERLAP) if self._looked_s else since(now_s, FIRST_LOOK)
        ours = f'(operationType = "{KIND}") (insertTime > "{after}")'
        answers = self._clients.aggregated("GlobalOperations", "operations", ours)
        with self._lock:
            self._looked_s = max(self._looked_s, now_s)
        return read_preemptions(row for _, rows in answers for row in rows)


def read_preemptions(operations: Iterable[Any]) -> list[Notice]:
    """The notices in these operations. A machine is preempted once, and its own metadata service
    says the same (providers/gcp/notice.py): it is one notice."""
    return [
        Notice(
            notice_id="gcp-preempted",
            kind=NoticeKind.PREEMPT,
            deadline_us=us_of(row.insert_time) + SOFT_OFF_US,
            source="operation",
            instance_id=target_of(row.target_link),
            text=row.status_message or "Compute Engine preempts this instance",
        )
        for row in operations
        if row.operation_type == KIND and target_of(row.target_link)
    ]
