"""What the clouds sell and for how much: asked for, held against what can be believed, recorded."""

from __future__ import annotations

import structlog

from providers.base import AuthError, OfferRequest, Provider, ProviderError
from spotd.clock import Clock
from spotd.decide.prices import STALE_S, Doubt, believed, stale
from spotd.model import Event, Severity
from spotd.store.base import Store

log = structlog.get_logger(__name__)

NAMED = 5  # offers that one message names


class Quotes:
    """One cloud's offers, from call to call. A daemon that has just begun believes for a while what
    is on record."""

    def __init__(self, provider: Provider, clock: Clock) -> None:
        self._provider = provider
        self._clock = clock
        self._answered_s = clock.monotonic_s()
        self._stale = False
        self._doubted: set[str] = set()  # offers that a person was told of

    def refresh(self, store: Store) -> None:
        """Ask for everything on sale and record it. What fails leaves the old offers, and after
        `STALE_S` their prices count as on-demand ones. Raises StoreError."""
        name = self._provider.name
        try:
            offers = self._provider.offers(OfferRequest())
        except ProviderError as error:
            if isinstance(error, AuthError):
                store.record_provider(name, str(error), self._clock.now_us())
            log.warning("offers", provider=name, error=str(error))
            self._grow_stale(store)
            return
        found, doubts = believed(offers)
        store.record_offers(name, found, self._clock.now_us())
        store.record_provider(name, "", self._clock.now_us())
        self._answered_s, self._stale = self._clock.monotonic_s(), False
        self._tell(store, doubts)

    def _grow_stale(self, store: Store) -> None:
        silent_s = self._clock.monotonic_s() - self._answered_s
        if self._stale or silent_s < STALE_S:
            return
        name, now_us = self._provider.name, self._clock.now_us()
        ours = [offer for offer in store.load_market(now_us).offers if offer.provider == name]
        store.record_offers(name, stale(ours), now_us)
        text = (
            f"{name} has told no prices for {silent_s / 3600:.1f} h: what it sold last counts at "
            "on-demand prices until it does"
        )
        key = f"prices/{name}"
        event = Event("prices", text, severity=Severity.WARNING, alert=bool(ours), key=key)
        store.add_event("", event, now_us)
        self._stale = True

    def _tell(self, store: Store, doubts: list[Doubt]) -> None:
        """Each offer once, for as long as it is doubted."""
        news = [doubt for doubt in doubts if doubt.offer_key not in self._doubted]
        if news:
            more = f" and {len(news) - NAMED} more" if len(news) > NAMED else ""
            name = self._provider.name
            text = (
                f"{name} tells prices that are not believed: "
                f"{'; '.join(doubt.text for doubt in news[:NAMED])}{more}. Too low counts as the "
                "on-demand price, and at one too high nothing is launched"
            )
            key = f"prices/{name}"
            event = Event("prices", text, severity=Severity.WARNING, alert=True, key=key)
            store.add_event("", event, self._clock.now_us())
        self._doubted = {doubt.offer_key for doubt in doubts}
