"""Who did what."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from spotd.store.base import AuditRow
from spotd.store.columns import clean
from tests.sim.memory.tables import Tables
from tests.sim.memory.transaction import Transaction


def add_audit(tx: Transaction, row: AuditRow) -> None:
    """See Store.add_audit."""
    words = {name: clean(getattr(row, name)) for name in ("user", "target", "text", "request")}
    tx.append(tx.tables.audit, replace(row, id=tx.take_ids(1), **words))


def audit(tables: Tables, since_us: int, after_id: int, limit: int) -> list[AuditRow]:
    """See Store.audit."""
    rows = (row for row in tables.audit if row.at_us >= since_us and row.id > after_id)
    return list(islice(rows, limit))
