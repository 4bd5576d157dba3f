"""The part of the store's contract about money beside the ledger: what invoices say, what
checkpoints cost, and who spent it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Carriage:
    """What a job's checkpoints had cost at `at_us`, in micro-USD, of the month (UTC) that began at
    `month_us`: to be written, to lie there, to leave clouds. `microusd_per_h`: lately; 0 in a month
    that is over."""

    job_id: str
    month_us: int
    microusd: int
    microusd_per_h: int
    at_us: int


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

    def carriages(self, month_us: int = 0) -> list[Carriage]:
        """Of all jobs that have any, by job and month; of that month alone where one is named."""
        ...

    def record_removed(self, job_id: str, manifest: str, at_us: int) -> None:
        """A person removed that checkpoint: it costs nothing any more."""
        ...

    def record_carriage(self, row: Carriage) -> None:
        """In place of what was known of that job and month. It counts in what the job has spent,
        its rate in what all use; where it became more, the job is due."""
        ...
