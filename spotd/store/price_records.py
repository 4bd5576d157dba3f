"""The part of the store's contract about what clouds ask for machines, now and before."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from providers.base import Offer
from spotd.domain.node_history import FleetHistory


class PricePoint(NamedTuple):
    """From `at_us` on this was the price of an offer, until the next point of the same offer."""

    offer_key: str
    at_us: int
    price_microusd_per_h: int
    list_microusd_per_h: int
    price_source: str


class MarketRecords(Protocol):
    """A part of `spotd.store.interface.Store`."""

    def record_offers(self, provider: str, offers: Sequence[Offer], at_us: int) -> None:
        """Replace a provider's offers; keep history where a price moved; split open segments whose
        price, list price or best on-demand price changed. Makes waiting jobs due."""
        ...

    def record_provider(self, provider: str, disabled: str, at_us: int) -> None:
        """A provider is out of use (text why) or in use again (""). A person is told once when that
        lasts."""
        ...

    def price_history(self, offer_keys: Collection[str], since_us: int) -> list[PricePoint]:
        """By offer and time; of each offer the point in force at `since_us` as well, if there is
        one on record."""
        ...

    def lift_refusals(self, code: str, offer_keys: Collection[str], at_us: int) -> int:
        """Somebody mended what these offers were refused for with `code`: forget it. The number of
        refusals; waiting jobs are due where there were any."""
        ...

    def past(self, since_us: int, now_us: int) -> FleetHistory:
        """What became of the machines asked for since, and of those that live: MOST_STAYS of
        store/node_stays.py at most, the newest."""
        ...
