"""The part of SqlStore about offers and prices; see `spotd.store.quotes`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from providers.base import Offer
from spotd.store import market
from spotd.store.base import PricePoint
from spotd.store.sql_access import SqlAccess


class SqlMarket(SqlAccess, Protocol):
    """A part of `spotd.store.sql.SqlStore`, which has what it works on."""

    def record_offers(self, provider: str, offers: Sequence[Offer], at_us: int) -> None:
        self._write(lambda tx: market.record_offers(tx, provider, offers, at_us))

    def record_provider(self, provider: str, disabled: str, at_us: int) -> None:
        self._write(lambda tx: market.record_provider(tx, provider, disabled, at_us))

    def price_history(self, offer_keys: Collection[str], since_us: int) -> list[PricePoint]:
        return self._database.read(lambda c: market.price_history(c, offer_keys, since_us))
