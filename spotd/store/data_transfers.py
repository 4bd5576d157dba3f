"""How much of jobs' data went over; see `invoice_records`."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import Connection, insert, select, update

from spotd.store import transfer_schema as schema
from spotd.store.invoice_records import DataTransfer
from spotd.store.transaction import Transaction

_freight = schema.freight.c
_ORDER = (_freight.job_id, _freight.url, _freight.node_id, _freight.month_us)


def shipments(conn: Connection, job_id: str) -> list[DataTransfer]:
    """See InvoiceRecords.shipments."""
    query = select(schema.freight).order_by(*_ORDER)
    if job_id:
        query = query.where(_freight.job_id == job_id)
    return [DataTransfer(**row) for row in conn.execute(query).mappings()]


def add_shipment(tx: Transaction, row: DataTransfer) -> None:
    """See InvoiceRecords.add_shipment."""
    this = (
        (_freight.job_id == row.job_id)
        & (_freight.url == row.url)
        & (_freight.node_id == row.node_id)
        & (_freight.month_us == row.month_us)
    )
    known = tx.conn.execute(select(schema.freight).where(this)).mappings().one_or_none()
    if known is None:
        tx.conn.execute(insert(schema.freight).values(asdict(row)))
    else:
        tx.conn.execute(
            update(schema.freight).where(this).values(asdict(DataTransfer(**known).plus(row)))
        )


def end_shipment(tx: Transaction, job_id: str, url: str, at_us: int) -> None:
    """See InvoiceRecords.end_shipment."""
    these = (_freight.job_id == job_id) & (_freight.url == url) & (_freight.node_id == "")
    where = these & (_freight.gone_at_us == 0)
    tx.conn.execute(update(schema.freight).where(where).values(gone_at_us=at_us))
