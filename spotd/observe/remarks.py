"""What adapters came upon in their clouds' answers: a person is told of each once."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import structlog

from providers.base import Provider
from providers.remarks import Remark, Remarking
from spotd.clock import Clock
from spotd.model import Event, Severity
from spotd.store.base import Store

log = structlog.get_logger(__name__)


class Remarks:
    """Of the providers in force. Thread-safe. What was told is known to this process alone: the
    next one tells it again when it comes upon it again."""

    def __init__(self, store: Store, providers: Mapping[str, Provider], clock: Clock) -> None:
        self._store = store
        self._providers = providers
        self._clock = clock
        self._lock = threading.Lock()
        self._told: set[str] = set()  # and on record

    def found(self) -> dict[str, tuple[str, Remark]]:
        """By key: the provider that came upon it, and what it is. Providers of one make share a
        remark about that make; the first by name stands for all."""
        found: dict[str, tuple[str, Remark]] = {}
        for name, provider in sorted(self._providers.items()):
            for remark in provider.remarks() if isinstance(provider, Remarking) else ():
                found.setdefault(remark.key, (name, remark))
        return found

    def tell(self) -> None:
        """Put what is new on record, as an alert. Raises StoreError; what was not taken is told the
        next time."""
        with self._lock:
            for key, (name, remark) in self.found().items():
                if key not in self._told:
                    text = f"{name}: {remark.text}"
                    event = Event("remark", text, severity=Severity.WARNING, alert=True, key=key)
                    self._store.add_event("", event, self._clock.now_us())
                    self._told.add(key)
