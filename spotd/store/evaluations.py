"""What evaluations of a job's model measured; see `evaluation_records`."""

from __future__ import annotations

import json
from dataclasses import asdict

from sqlalchemy import Connection, insert, select, update

from spotd.domain.evaluation import Evaluation
from spotd.store import schema
from spotd.store.evaluation_records import EvaluationRow
from spotd.store.transaction import Transaction

_row, _jobs = schema.evaluations.c, schema.jobs.c


def record(tx: Transaction, row: EvaluationRow) -> bool:
    """See ResultRecords.record_evaluation. The job is locked: of two that hand in the same, the
    second finds it."""
    tx.conn.execute(select(_jobs.id).where(_jobs.id == row.job_id).with_for_update()).all()
    digest = row.told.digest
    this = (_row.job_id == row.job_id) & (_row.digest == digest)
    if tx.conn.execute(select(_row.digest).where(this)).first() is not None:
        if _newest(tx.conn, row) != digest:
            again = {"at_us": row.at_us, "source": row.source}
            tx.conn.execute(update(schema.evaluations).where(this).values(again))
        return False
    told = {**asdict(row.told), "failed": json.dumps(row.told.failed)}
    values = {"job_id": row.job_id, "digest": digest, "at_us": row.at_us, "source": row.source}
    tx.conn.execute(insert(schema.evaluations).values(**told, **values))
    return True


def _newest(conn: Connection, row: EvaluationRow) -> str:
    """The digest of the last of that suite."""
    these = (_row.job_id == row.job_id) & (_row.suite == row.told.suite)
    newest = select(_row.digest).where(these).order_by(_row.at_us.desc(), _row.digest.desc())
    return str(conn.execute(newest.limit(1)).scalar_one())


def evaluations(conn: Connection, job_id: str) -> list[EvaluationRow]:
    """See ResultRecords.evaluations."""
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
