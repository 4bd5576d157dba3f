"""Who is told: a chat that is down at times, loses answers, and asks for patience."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from spotd.alert_sinks.base import Alert, AlertSinkError
from spotd.domain.events import Severity
from spotd.store.transaction import COALESCE_S
from tests.sim.faults import Faults
from tests.sim.kernel import EPOCH_US, Kernel

TAKES_S = 0.3  # to send a message


class People:
    """`AlertSink`, and what became of its messages."""

    min_severity = Severity.INFO
    paced = True

    def __init__(self, kernel: Kernel, faults: Faults) -> None:
        self.told: dict[
            tuple[str, str], int
        ] = {}  # (job, kind of event) -> of what happened up to when, us
        self.messages: Counter[int] = Counter()  # by hour
        self._kernel = kernel
        self._faults = faults

    def send(self, alerts: Sequence[Alert]) -> None:
        """One message. Raises AlertSinkError."""
        if self._faults.strikes("chat_hangs"):
            self._kernel.sleep(120.0)
        self._kernel.sleep(TAKES_S)
        if self._faults.strikes("chat_down"):
            raise AlertSinkError("503", retry_after_s=10.0)
        now_us = self._kernel.now_us
        self.messages[(now_us - EPOCH_US) // 3_600_000_000] += 1
        for alert in alerts:
            what = (alert.job_id, alert.event.kind)
            # Our clock may have been ahead when it happened, and its repeats came later.
            last_us = alert.at_us + (int(COALESCE_S * 1e6) if alert.repeats > 1 else 0)
            self.told[what] = max(self.told.get(what, 0), now_us, last_us)
        if self._faults.strikes("chat_reply_lost"):
            raise AlertSinkError("no answer")
