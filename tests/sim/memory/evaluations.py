"""Measurements of jobs' models."""

from __future__ import annotations

from spotd.store.evaluations import EvaluationRow
from tests.sim.memory.transaction import Transaction


def record(tx: Transaction, row: EvaluationRow) -> bool:
    """See Store.evaluations.record."""
    key, table = (row.job_id, row.evaluation.digest), tx.tables.evaluations
    if key in table:
        here = (row.job_id, row.evaluation.suite)
        rows = (
            item for item in table.items() if (item[1].job_id, item[1].evaluation.suite) == here
        )
        if max(rows, key=lambda item: (item[1].at_us, item[0]))[0] != key:
            tx.put(table, key, row)
        return False
    tx.put(table, key, row)
    return True
