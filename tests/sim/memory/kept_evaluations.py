"""The part of MemoryStore about evaluations; see `spotd.store.evaluation_records`."""

from __future__ import annotations

from spotd.store.evaluation_records import EvaluationRow
from tests.sim.memory.kept_lives import MemoryLives
from tests.sim.memory.transaction import Transaction


class MemoryEvaluations(MemoryLives):
    """A part of `tests.sim.memory_store.MemoryStore`, which has what it works on."""

    def record_evaluation(self, row: EvaluationRow) -> bool:
        return self._write(record, row)

    def evaluations(self, job_id: str = "") -> list[EvaluationRow]:
        rows = self._here().evaluations.items()
        found = sorted(rows, key=lambda item: (item[1].at_us, item[0]))
        return [row for _, row in found if job_id in ("", row.job_id)]


def record(tx: Transaction, row: EvaluationRow) -> bool:
    """See ResultRecords.record_evaluation."""
    key, table = (row.job_id, row.told.digest), tx.tables.evaluations
    if key in table:
        here = (row.job_id, row.told.suite)
        rows = (item for item in table.items() if (item[1].job_id, item[1].told.suite) == here)
        if max(rows, key=lambda item: (item[1].at_us, item[0]))[0] != key:
            tx.put(table, key, row)
        return False
    tx.put(table, key, row)
    return True
