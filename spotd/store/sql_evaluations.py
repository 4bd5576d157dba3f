"""The part of SqlStore about evaluations; see `spotd.store.evaluation_records`."""

from __future__ import annotations

from typing import Protocol

from spotd.store import evaluations
from spotd.store.evaluation_records import EvaluationRow
from spotd.store.sql_lives import SqlLives


class SqlEvaluations(SqlLives, Protocol):
    """A part of `spotd.store.sql_store.SqlStore`, which has what it works on."""

    def record_evaluation(self, row: EvaluationRow) -> bool:
        return self._write(lambda tx: evaluations.record(tx, row))

    def evaluations(self, job_id: str = "") -> list[EvaluationRow]:
        return self._database.read(lambda c: evaluations.evaluations(c, job_id))
