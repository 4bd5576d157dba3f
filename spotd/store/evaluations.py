"""Measurements of a job's model."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, insert, select, update

from spotd.domain.evaluation import Evaluation
from spotd.store import schema
from spotd.store.session import Repository, read, write
from spotd.store.transaction import Transaction


@dataclass(frozen=True)
class EvaluationRow:
    """A measurement that was reported at `at_us`; `source` is a node's id, or a user."""

    job_id: str
    at_us: int
    source: str
    evaluation: Evaluation


_row, _jobs = schema.evaluations.c, schema.jobs.c


class EvaluationRepository(Repository):
    """Measurements of jobs' models."""

    @write
    def record(self, tx: Transaction, row: EvaluationRow) -> bool:
        """Record a measurement; True if it is new.

        Repeating a measurement of a job changes nothing, unless another one of that suite came
        between: then this one is the newest again. The job is locked, so that the second of two
        equal measurements finds the first.
        """
        return record(tx, row)

    @read
    def rows(self, conn: Connection, job_id: str = "") -> list[EvaluationRow]:
        """Measurements of one job or of all, in the order in which they were reported."""
        query = select(schema.evaluations).order_by(_row.at_us, _row.job_id, _row.digest)
        if job_id:
            query = query.where(_row.job_id == job_id)
        return [
            EvaluationRow(
                row.job_id,
                row.at_us,
                row.source,
                Evaluation(
                    suite=row.suite,
                    cases=row.cases,
                    passed=row.passed,
                    tokens_per_s=row.tokens_per_s,
                    ttft_s=row.ttft_s,
                    ttft_p95_s=row.ttft_p95_s,
                    failed=tuple(json.loads(row.failed)),
                ),
            )
            for row in conn.execute(query)
        ]


def record(tx: Transaction, row: EvaluationRow) -> bool:
    """Record a measurement; True if it is new. The job is locked against a second writer."""
    tx.conn.execute(select(_jobs.id).where(_jobs.id == row.job_id).with_for_update()).all()
    digest = row.evaluation.digest
    this = (_row.job_id == row.job_id) & (_row.digest == digest)
    if tx.conn.execute(select(_row.digest).where(this)).first() is not None:
        if _newest(tx.conn, row) != digest:
            again = {"at_us": row.at_us, "source": row.source}
            tx.conn.execute(update(schema.evaluations).where(this).values(again))
        return False
    measured = {**asdict(row.evaluation), "failed": json.dumps(row.evaluation.failed)}
    values = {"job_id": row.job_id, "digest": digest, "at_us": row.at_us, "source": row.source}
    tx.conn.execute(insert(schema.evaluations).values(**measured, **values))
    return True


def _newest(conn: Connection, row: EvaluationRow) -> str:
    """The digest of the last of that suite."""
    these = (_row.job_id == row.job_id) & (_row.suite == row.evaluation.suite)
    newest = select(_row.digest).where(these).order_by(_row.at_us.desc(), _row.digest.desc())
    return str(conn.execute(newest.limit(1)).scalar_one())
