"""The part of the store's contract about money beside the ledger: what invoices say, what
checkpoints and data cost, and who spent it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Protocol


@dataclass(frozen=True)
class StorageCost:
    """What a job's checkpoints and data had cost at `at_us`, in micro-USD, of the month (UTC) that
    began at `month_us`: to be written, to lie there, to leave clouds. `microusd_per_h`: lately; 0
    in a month that is over."""

    job_id: str
    month_us: int
    microusd: int
    microusd_per_h: int
    at_us: int


MOST_BYTES = 1 << 60  # that a node is believed of a month


@dataclass(frozen=True)
class DataTransfer:
    """What went over of a job's data in the month (UTC) that began at `month_us`. Without a node:
    brought by the control box to the copy at `url`, ahead of the job; egress and requests, in
    micro-USD, were on record before they were made. It lies there from `began_at_us` until
    `gone_at_us`; 0: still. `staged_at_us`: all of it was there. With a node: what that read over
    its mount of `url`, or copied from there, as it measured."""

    job_id: str
    url: str
    node_id: str
    month_us: int
    bytes: int = 0
    egress_microusd: int = 0
    requests_microusd: int = 0
    began_at_us: int = 0
    staged_at_us: int = 0
    gone_at_us: int = 0

    def plus(self, more: DataTransfer) -> DataTransfer:
        """What is known, and `more` of the same. Where a copy was gone and is brought again, what
        lay there before counts on with it: too much, and never too little."""
        return replace(
            self,
            bytes=min(self.bytes + more.bytes, MOST_BYTES),
            egress_microusd=self.egress_microusd + more.egress_microusd,
            requests_microusd=self.requests_microusd + more.requests_microusd,
            staged_at_us=self.staged_at_us or more.staged_at_us,
            gone_at_us=more.gone_at_us,
        )


class InvoiceRecords(Protocol):
    """A part of `spotd.store.interface.Store`."""

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

    def carriages(self, month_us: int = 0) -> list[StorageCost]:
        """Of all jobs that have any, by job and month; of that month alone where one is named."""
        ...

    def record_removed(self, job_id: str, manifest: str, at_us: int) -> None:
        """A person removed that checkpoint: it costs nothing any more."""
        ...

    def shipments(self, job_id: str = "") -> list[DataTransfer]:
        """Of one job or of all, by job, URL, node and month."""
        ...

    def add_shipment(self, row: DataTransfer) -> None:
        """On top of what is known of that job, URL, node and month."""
        ...

    def end_shipment(self, job_id: str, url: str, at_us: int) -> None:
        """What the box brought to that copy lies there no longer."""
        ...

    def record_carriage(self, row: StorageCost) -> None:
        """In place of what was known of that job and month. It counts in what the job has spent,
        its rate in what all use; where it became more, the job is due."""
        ...
