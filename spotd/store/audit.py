"""Who did what: lines that are added, read, and never changed."""

from __future__ import annotations

from sqlalchemy import Connection, select

from spotd.store import schema
from spotd.store.interface import AuditOutcome, AuditRow
from spotd.store.transaction import Transaction

_audit = schema.audit.c


def add_audit(tx: Transaction, row: AuditRow) -> None:
    """See Store.add_audit."""
    values = {
        "id": tx.take_ids(1),
        "at_us": row.at_us,
        "uid": row.uid,
        "user_name": row.user,
        "action": row.action,
        "target": row.target,
        "outcome": row.outcome.value,
        "text": row.text,
        "request": row.request,
    }
    tx.conn.execute(schema.audit.insert().values(**values))


def audit(conn: Connection, since_us: int, after_id: int, limit: int) -> list[AuditRow]:
    """See Store.audit."""
    query = (
        select(schema.audit)
        .where(_audit.at_us >= since_us, _audit.id > after_id)
        .order_by(_audit.id)
        .limit(limit)
    )
    return [
        AuditRow(
            at_us=row.at_us,
            uid=row.uid,
            user=row.user_name,
            action=row.action,
            target=row.target,
            outcome=AuditOutcome(row.outcome),
            text=row.text,
            request=row.request,
            id=row.id,
        )
        for row in conn.execute(query)
    ]
