"""The part of SqlStore about offers and prices (see `spotd.store.price_records`), and about the
routes of alerts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from providers.base import Offer
from spotd.domain.node_history import FleetHistory
from spotd.planner.core.checkpoint_interval import ObservedLifetimes
from spotd.store import alerts, event_log, market, node_stays
from spotd.store.interface import PricePoint, RouteRow
from spotd.store.sql_access import SqlAccess


class SqlMarket(SqlAccess, Protocol):
    """A part of `spotd.store.sql_store.SqlStore`, which has what it works on."""

    def record_offers(self, provider: str, offers: Sequence[Offer], at_us: int) -> None:
        self._write(lambda tx: market.record_offers(tx, provider, offers, at_us))

    def record_provider(self, provider: str, disabled: str, at_us: int) -> None:
        self._write(lambda tx: market.record_provider(tx, provider, disabled, at_us))

    def price_history(self, offer_keys: Collection[str], since_us: int) -> list[PricePoint]:
        return self._database.read(lambda c: market.price_history(c, offer_keys, since_us))

    def lift_refusals(self, code: str, offer_keys: Collection[str], at_us: int) -> int:
        return self._write(lambda tx: market.lift_refusals(tx, code, offer_keys, at_us))

    def route_rows(self) -> list[RouteRow]:
        return self._database.glance(alerts.route_rows)

    def lives(self, since_us: int) -> list[ObservedLifetimes]:
        return self._database.read(lambda c: event_log.lives(c, since_us))

    def past(self, since_us: int, now_us: int) -> FleetHistory:
        return self._database.read(lambda c: node_stays.past(c, since_us, now_us))
