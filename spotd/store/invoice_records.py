"""The part of the store's contract about money that others say was spent, and who spent it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol


class InvoiceRecords(Protocol):
    """A part of `spotd.store.base.Store`."""

    def job_users(self, job_ids: Collection[str]) -> dict[str, str]:
        """Id -> whose it is, of those that exist, finished or not."""
        ...

    def event_keys(self, kind: str, since_us: int) -> set[str]:
        """Of the events of a kind, of whatever job: what was told already."""
        ...

    def record_invoiced(self, amounts: Mapping[int, int], at_us: int) -> None:
        """Segment -> micro-USD that an invoice has for it. The newest word counts; ledger sums that
        limits are held against stay by price and time."""
        ...
