"""Fetch the clouds' offers, check the prices for plausibility, and record them."""

from __future__ import annotations

import structlog

from providers.base import AuthError, OfferRequest, Provider, ProviderError
from spotd.base.clock import Clock
from spotd.domain.events import Event, Severity
from spotd.planner.offers.price_sanity import STALE_S, ImplausiblePrice, believed, stale
from spotd.store.interface import Store

log = structlog.get_logger(__name__)

NAMED = 5  # offers that one message names


class Quotes:
    """One cloud's offers from call to call. A new daemon trusts the recorded ones for a while."""

    def __init__(self, provider: Provider, clock: Clock) -> None:
        self._provider = provider
        self._clock = clock
        self._answered_s = clock.monotonic_s()
        self._stale = False
        self._doubted: set[str] = set()  # offers with an alert

    def refresh(self, store: Store) -> None:
        """Fetch all offers and record them.

        On failure the old offers stay; after `STALE_S` their prices count as on-demand prices.
        Raises StoreError.
        """
        name = self._provider.name
        try:
            offers = self._provider.offers(OfferRequest())
        except ProviderError as error:
            if isinstance(error, AuthError):
                store.market.record_provider(name, str(error), self._clock.now_us())
            log.warning("offers", provider=name, error=str(error))
            self._grow_stale(store)
            return
        credible, doubts = believed(offers)
        store.market.record_offers(name, credible, self._clock.now_us())
        store.market.record_provider(name, "", self._clock.now_us())
        self._answered_s, self._stale = self._clock.monotonic_s(), False
        self._tell(store, doubts)

    def _grow_stale(self, store: Store) -> None:
        silent_s = self._clock.monotonic_s() - self._answered_s
        if self._stale or silent_s < STALE_S:
            return
        name, now_us = self._provider.name, self._clock.now_us()
        ours = [offer for offer in store.market.load(now_us).offers if offer.provider == name]
        store.market.record_offers(name, stale(ours), now_us)
        text = (
            f"{name} has reported no prices for {silent_s / 3600:.1f} h: its last offers count at "
            "on-demand prices until it does"
        )
        key = f"prices/{name}"
        event = Event("prices", text, severity=Severity.WARNING, alert=bool(ours), key=key)
        store.events.add("", event, now_us)
        self._stale = True

    def _tell(self, store: Store, doubts: list[ImplausiblePrice]) -> None:
        """Alert once on each implausible offer, for as long as it stays so."""
        news = [doubt for doubt in doubts if doubt.offer_key not in self._doubted]
        if news:
            more = f" and {len(news) - NAMED} more" if len(news) > NAMED else ""
            name = self._provider.name
            text = (
                f"{name} reports implausible prices: "
                f"{'; '.join(doubt.text for doubt in news[:NAMED])}{more}. A price that is too low "
                "counts as the on-demand price; at one that is too high nothing is launched"
            )
            key = f"prices/{name}"
            event = Event("prices", text, severity=Severity.WARNING, alert=True, key=key)
            store.events.add("", event, self._clock.now_us())
        self._doubted = {doubt.offer_key for doubt in doubts}
