"""What invoices say that segments cost, what checkpoints cost, and whose jobs they are of; see
`invoice_records`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict

from sqlalchemy import Connection, bindparam, insert, select, update

from spotd.store import schema
from spotd.store.invoice_records import StorageCost
from spotd.store.transaction import Transaction

_jobs, _segments, _events = schema.jobs.c, schema.segments.c, schema.events.c
_carriage = schema.carriage.c
_USERS = select(_jobs.id, _jobs.user_name).where(_jobs.id.in_(bindparam("jobs", expanding=True)))
_MANY = 500  # ids in one statement


def job_users(conn: Connection, job_ids: Collection[str]) -> dict[str, str]:
    """See InvoiceRecords.job_users."""
    ids, found = sorted(job_ids), dict[str, str]()
    for at in range(0, len(ids), _MANY):
        rows = conn.execute(_USERS, {"jobs": ids[at : at + _MANY]})
        found |= {row.id: row.user_name for row in rows}
    return found


def event_keys(conn: Connection, kind: str, since_us: int) -> set[str]:
    """See InvoiceRecords.event_keys."""
    query = select(_events.key).where(_events.kind == kind, _events.at_us >= since_us)
    return set(conn.execute(query).scalars())


def record_invoiced(tx: Transaction, amounts: Mapping[int, int], at_us: int) -> None:
    """See InvoiceRecords.record_invoiced."""
    if not amounts:
        return
    rows = [{"segment": number, "amount": amounts[number]} for number in sorted(amounts)]
    values = {"invoiced_microusd": bindparam("amount"), "reconciled_at_us": at_us}
    where = _segments.id == bindparam("segment")
    tx.conn.execute(update(schema.segments).where(where).values(values), rows)


def record_removed(tx: Transaction, job_id: str, manifest: str, at_us: int) -> None:
    """See InvoiceRecords.record_removed."""
    row = schema.checkpoints.c
    this = (row.job_id == job_id) & (row.manifest == manifest) & (row.removed_at_us == 0)
    tx.conn.execute(update(schema.checkpoints).where(this).values(removed_at_us=at_us))


def carriages(conn: Connection, month_us: int) -> list[StorageCost]:
    """See InvoiceRecords.carriages."""
    query = select(schema.carriage).order_by(_carriage.job_id, _carriage.month_us)
    if month_us:
        query = query.where(_carriage.month_us == month_us)
    return [StorageCost(**row) for row in conn.execute(query).mappings()]


def record_carriage(tx: Transaction, row: StorageCost) -> None:
    """See InvoiceRecords.record_carriage."""
    this = (_carriage.job_id == row.job_id) & (_carriage.month_us == row.month_us)
    known = tx.conn.execute(select(_carriage.microusd).where(this)).scalar_one_or_none()
    if row.microusd > (known or 0):
        tx.touch({row.job_id: row.at_us})
    if known is None:
        tx.conn.execute(insert(schema.carriage).values(asdict(row)))
    else:
        tx.conn.execute(update(schema.carriage).where(this).values(asdict(row)))
