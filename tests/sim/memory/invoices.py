"""What invoices say that segments cost, what checkpoints cost, and what went over of data."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from spotd.domain.fast_replace import changed
from spotd.store.storage_costs import StorageCost
from spotd.store.transfers import DataTransfer
from tests.sim.memory.tables import Tables
from tests.sim.memory.transaction import Transaction


def job_users(tables: Tables, job_ids: Collection[str]) -> dict[str, str]:
    """See Store.jobs.users."""
    known = tables.submissions
    return {job_id: known[job_id].user for job_id in job_ids if job_id in known}


def event_keys(tables: Tables, kind: str, since_us: int) -> set[str]:
    """See Store.events.keys."""
    rows = (row for row in tables.events if row.event.kind == kind and row.at_us >= since_us)
    return {row.event.key for row in rows}


def record_invoiced(tx: Transaction, amounts: Mapping[int, int], at_us: int) -> None:
    """See Store.ledger.record_invoiced."""
    segments = tx.tables.segments
    for number, amount in amounts.items():
        if number in segments:
            told = {"invoiced_microusd": amount, "reconciled_at_us": at_us}
            tx.put(segments, number, changed(segments[number], **told))


def record_removed(tx: Transaction, job_id: str, manifest: str, at_us: int) -> None:
    """See Store.checkpoints.record_removed."""
    key = (job_id, manifest)
    row = tx.tables.checkpoints.get(key)
    if row is not None and not row.removed_at_us:
        tx.put(tx.tables.checkpoints, key, changed(row, removed_at_us=at_us))


def carriages(tables: Tables, month_us: int) -> list[StorageCost]:
    """See Store.storage_costs.rows."""
    rows = (row for _, row in sorted(tables.carriage.items()))
    return [row for row in rows if month_us in (0, row.month_us)]


def record_carriage(tx: Transaction, row: StorageCost) -> None:
    """See Store.storage_costs.record."""
    known = tx.tables.carriage.get((row.job_id, row.month_us))
    if row.microusd > (known.microusd if known else 0):
        tx.touch({row.job_id: row.at_us})
    tx.put(tx.tables.carriage, (row.job_id, row.month_us), row)


def shipments(tables: Tables, job_id: str) -> list[DataTransfer]:
    """See Store.transfers.rows."""
    rows = (row for _, row in sorted(tables.freight.items()))
    return [row for row in rows if job_id in ("", row.job_id)]


def add_shipment(tx: Transaction, row: DataTransfer) -> None:
    """See Store.transfers.add."""
    key = (row.job_id, row.url, row.node_id, row.month_us)
    known = tx.tables.freight.get(key)
    tx.put(tx.tables.freight, key, known.plus(row) if known else row)


def end_shipment(tx: Transaction, job_id: str, url: str, at_us: int) -> None:
    """See Store.transfers.end."""
    for key, row in list(tx.tables.freight.items()):
        if key[:3] == (job_id, url, "") and not row.gone_at_us:
            tx.put(tx.tables.freight, key, changed(row, gone_at_us=at_us))
