"""Alert once when a condition that blocks the daemon starts, and once when it clears."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping

import structlog

from spotd.base.clock import Clock
from spotd.daemon.sdnotify import notify
from spotd.domain.events import Event, Severity
from spotd.store.errors import StoreError
from spotd.store.interface import Store

log = structlog.get_logger(__name__)


class ConditionAlerts:
    """The blocking conditions that were alerted. Thread-safe."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()  # the loop's thread and others update at the same time
        self._alerted: set[str] = set()

    def update(self, conditions: Mapping[str, tuple[str, str]]) -> None:
        """Alert on every condition that changed.

        `conditions` is kind -> (reason, or "" while the condition does not hold; the message for
        when it clears). A kind that can occur several times has a name, too: "kind:name". An alert
        that the store does not accept is sent at the next update.
        """
        with self._lock:
            # A condition that the configuration no longer has ends without an alert.
            self._alerted &= conditions.keys()
            for key, (reason, cleared) in conditions.items():
                if bool(reason) == (key in self._alerted):
                    continue
                notify(f"STATUS={reason}")
                severity = Severity.ERROR if reason else Severity.INFO
                kind, message = key.partition(":")[0], reason or cleared
                event = Event(kind, message, severity=severity, alert=True, key=key)
                with contextlib.suppress(StoreError):
                    self._store.events.add("", event, self._clock.now_us())
                    self._alerted ^= {key}
                    log.warning(kind, text=message)
