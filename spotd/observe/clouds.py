"""What the clouds say: listings, offers and their own notices, asked for and recorded.

Each duty is a function of (store, provider, clock); the daemon's schedule calls them, an effect may
ask for a listing out of turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

import structlog

from providers.base import AuthError, Instance, OfferRequest, Provider, ProviderError
from spotd.clock import Clock
from spotd.model import Event, S, Severity
from spotd.store.base import Store

log = structlog.get_logger(__name__)

# An instance that no node wants is ended only when it was seen so for this long: a create whose
# record is on its way must not be taken for an orphan.
ORPHAN_GRACE_S = 60.0


class Survey:
    """Lists clouds, one call at a time per provider.

    Who asks while a listing is on its way shares the *next* one: only a listing that was asked for
    afterwards says anything about what the asker just did.
    """

    def __init__(self, store: Store, providers: Mapping[str, Provider], clock: Clock) -> None:
        self._store = store
        self._providers = providers
        self._clock = clock
        self._lock = threading.Lock()
        self._running: set[str] = set()
        self._waiting: dict[str, Future[Callable[[], None]]] = {}
        self._orphans_since_us: dict[tuple[str, str], int] = {}

    def survey(self, provider: str) -> Callable[[], None]:
        """List `provider`; the result records it (once, whoever calls it). Raises ProviderError."""
        with self._lock:
            if provider in self._running:
                shared = self._waiting.setdefault(provider, Future())
                return self._await(shared)
            self._running.add(provider)
        return self._list(provider)

    def _await(self, shared: Future[Callable[[], None]]) -> Callable[[], None]:
        return shared.result(timeout=30)

    def _list(self, provider: str) -> Callable[[], None]:
        try:
            asked_at_us = self._clock.now_us()
            instances = self._providers[provider].list()
            return self._recorder(provider, instances, asked_at_us)
        finally:
            self._serve_waiting(provider)

    def _serve_waiting(self, provider: str) -> None:
        """List once more for those who asked meanwhile, on the thread that is free now."""
        with self._lock:
            shared = self._waiting.pop(provider, None)
            if shared is None:
                self._running.discard(provider)
                return
        try:
            shared.set_result(self._list(provider))
        except BaseException as error:
            shared.set_exception(error)
            if not isinstance(error, ProviderError):
                raise

    def _recorder(
        self, provider: str, instances: Sequence[Instance], asked_at_us: int
    ) -> Callable[[], None]:
        once = threading.Lock()
        done = False

        def record() -> None:
            nonlocal done
            with once:
                if not done:
                    now_us = self._clock.now_us()
                    orphans = self._store.record_listing(provider, instances, asked_at_us, now_us)
                    self._end_orphans(provider, orphans, now_us)
                    done = True

        return record

    def _end_orphans(self, provider: str, orphans: Sequence[Instance], now_us: int) -> None:
        """Give back what carries our tag and no node wants, after a grace."""
        known = {(provider, orphan.instance_id) for orphan in orphans}
        for key in [k for k in self._orphans_since_us if k[0] == provider and k not in known]:
            del self._orphans_since_us[key]
        for orphan in orphans:
            since_us = self._orphans_since_us.setdefault((provider, orphan.instance_id), now_us)
            if now_us - since_us < ORPHAN_GRACE_S * S:
                continue
            log.warning("orphan", provider=provider, instance=orphan.instance_id)
            self._providers[provider].terminate(orphan.instance_id)
            text = f"{orphan.instance_id} in {provider}/{orphan.zone} belongs to no job: terminated"
            event = Event("orphan", text, severity=Severity.WARNING, alert=True)
            self._store.add_event(orphan.tags.get("spotd-job", ""), event, now_us)


def refresh_offers(store: Store, provider: Provider, clock: Clock) -> None:
    """Ask for everything on sale and record it. Failures are logged and leave the old offers."""
    try:
        offers = provider.offers(OfferRequest())
    except AuthError as error:
        store.record_provider(provider.name, str(error), clock.now_us())
        return
    except ProviderError as error:
        log.warning("offers", provider=provider.name, error=str(error))
        return
    store.record_offers(provider.name, offers, clock.now_us())
    store.record_provider(provider.name, "", clock.now_us())


def hear_notices(store: Store, provider: Provider, clock: Clock) -> None:
    """Ask the cloud's own queue of notices and record them."""
    try:
        notices = provider.notices()
    except ProviderError as error:
        log.warning("notices", provider=provider.name, error=str(error))
        return
    if notices:
        store.record_cloud_notices(provider.name, notices, clock.now_us())
