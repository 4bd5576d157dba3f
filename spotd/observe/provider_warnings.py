"""Alert once on each warning that provider adapters found in their clouds' answers."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from providers.base import Provider
from providers.warnings import ProviderWarning, WarningSource
from spotd.base.clock import Clock
from spotd.domain.events import Event, Severity
from spotd.store.interface import Store


class ProviderWarnings:
    """The warnings of the configured providers. Thread-safe.

    Only this process remembers which were alerted; the next one alerts again when they occur again.
    """

    def __init__(self, store: Store, providers: Mapping[str, Provider], clock: Clock) -> None:
        self._store = store
        self._providers = providers
        self._clock = clock
        self._lock = threading.Lock()
        self._told: set[str] = set()  # and on record

    def found(self) -> dict[str, tuple[str, ProviderWarning]]:
        """Return the warnings by key, each with the provider that found it.

        Providers of one cloud share a warning about that cloud, under the first name.
        """
        warnings: dict[str, tuple[str, ProviderWarning]] = {}
        for name, provider in sorted(self._providers.items()):
            for remark in provider.warnings() if isinstance(provider, WarningSource) else ():
                warnings.setdefault(remark.key, (name, remark))
        return warnings

    def tell(self) -> None:
        """Record new warnings as alerts. Raises StoreError; unrecorded ones are tried next time."""
        with self._lock:
            for key, (name, remark) in self.found().items():
                if key not in self._told:
                    text = f"{name}: {remark.text}"
                    event = Event("remark", text, severity=Severity.WARNING, alert=True, key=key)
                    self._store.events.add("", event, self._clock.now_us())
                    self._told.add(key)
