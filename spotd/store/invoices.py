"""What invoices say that segments cost, and whose jobs they are of; see `invoice_records`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import Connection, bindparam, select, update

from spotd.store import schema
from spotd.store.transaction import Transaction

_jobs, _segments, _events = schema.jobs.c, schema.segments.c, schema.events.c
_USERS = select(_jobs.id, _jobs.user_name).where(_jobs.id.in_(bindparam("jobs", expanding=True)))


def job_users(conn: Connection, job_ids: Collection[str]) -> dict[str, str]:
    """See InvoiceRecords.job_users."""
    rows = conn.execute(_USERS, {"jobs": sorted(job_ids)}) if job_ids else ()
    return {row.id: row.user_name for row in rows}


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
