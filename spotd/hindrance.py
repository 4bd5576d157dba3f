"""What keeps a daemon from its work is told once as it begins, and once as it ends."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping

import structlog

from spotd.clock import Clock
from spotd.model import Event, Severity
from spotd.sdnotify import notify
from spotd.store.base import Store, StoreError

log = structlog.get_logger(__name__)


class Hindrances:
    """Thread-safe."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()  # the loop's thread and others look at the same moment
        self._told: set[str] = set()  # and on record

    def tell(self, found: Mapping[str, tuple[str, str]]) -> None:
        """`found` is kind -> (why, or "" where it is not so; what to say when it is over), a kind
        that there may be several of with their names, "kind:name". What the store did not take is
        told the next time."""
        with self._lock:
            self._told &= found.keys()  # what was taken out of the configuration ends without word
            for key, (why, over) in found.items():
                if bool(why) == (key in self._told):
                    continue
                notify(f"STATUS={why}")
                severity, kind = Severity.ERROR if why else Severity.INFO, key.partition(":")[0]
                event = Event(kind, why or over, severity=severity, alert=True, key=key)
                with contextlib.suppress(StoreError):
                    self._store.add_event("", event, self._clock.now_us())
                    self._told ^= {key}
                    log.warning(kind, text=why or over)
