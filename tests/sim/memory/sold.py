"""The part of MemoryStore about what clouds sell, and what became of it; see
`spotd.store.price_records`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from providers.base import Offer
from spotd.domain.node_history import FleetHistory
from spotd.planner.core.checkpoint_interval import ObservedLifetimes
from spotd.store.interface import PricePoint
from tests.sim.memory import market, record, stays
from tests.sim.memory.kept_invoices import MemoryInvoices


class MemoryMarket(MemoryInvoices):
    """A part of `tests.sim.memory_store.MemoryStore`, which has what it works on."""

    def record_offers(self, provider: str, offers: Sequence[Offer], at_us: int) -> None:
        self._write(market.record_offers, provider, offers, at_us)

    def record_provider(self, provider: str, disabled: str, at_us: int) -> None:
        self._write(market.record_provider, provider, disabled, at_us)

    def price_history(self, offer_keys: Collection[str], since_us: int) -> list[PricePoint]:
        return market.price_history(self._here(), offer_keys, since_us)

    def lift_refusals(self, code: str, offer_keys: Collection[str], at_us: int) -> int:
        return self._write(market.lift_refusals, code, offer_keys, at_us)

    def lives(self, since_us: int) -> list[ObservedLifetimes]:
        return record.lives(self._here(), since_us)

    def past(self, since_us: int, now_us: int) -> FleetHistory:
        return stays.past(self._here(), since_us, now_us)
