"""Evaluation results of a job's model: import and read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spotd.api.request.request import ApiRequest, bad_input
from spotd.api.views.resources import iso
from spotd.domain.evaluation import EvaluationError, read_evaluation
from spotd.domain.job import Job
from spotd.store.evaluations import EvaluationRow
from spotd.store.interface import Store


def import_results(call: ApiRequest) -> dict[str, Any]:
    """Put the measurement of the body on record with the job; see ResultRecords."""
    job = call.job()
    try:
        evaluation = read_evaluation(call.body)
    except EvaluationError as error:
        raise bad_input(f"{error.field}: {error.text}", error.fix) from None
    row = EvaluationRow(job.id, call.now_us, call.actor, evaluation)
    new = call.context.store.evaluations.record(row)
    return {"kind": "Evaluation", "job": job.name, "new": new, **result_data(row)}


def newest(rows: Sequence[EvaluationRow]) -> list[EvaluationRow]:
    """Return the last result of each suite, by name."""
    by_suite = {row.evaluation.suite: row for row in rows}
    return [by_suite[suite] for suite in sorted(by_suite)]


def evaluated(store: Store, job: Job) -> list[EvaluationRow]:
    """Return the newest result of each suite of the job, otherwise of jobs that came `after` it.

    Such a job is the phase that validates this job's model.
    """
    own = store.evaluations.rows(job.id)
    if own:
        return newest(own)
    rows = store.evaluations.rows()
    after = {name for name in {row.job_id for row in rows} if _comes_after(store, name, job)}
    return newest([row for row in rows if row.job_id in after])


def _comes_after(store: Store, job_id: str, job: Job) -> bool:
    evaluated_job = store.jobs.find(job_id)
    return evaluated_job is not None and evaluated_job.spec.queue.after == job.id


def result_data(row: EvaluationRow) -> dict[str, Any]:
    """Return a result as JSON; values that were not measured are null."""
    evaluation = row.evaluation
    return {
        "suite": evaluation.suite,
        "at": iso(row.at_us),
        "source": row.source,
        "cases": evaluation.cases or None,
        "passed": evaluation.passed if evaluation.cases else None,
        "share": round(evaluation.passed / evaluation.cases, 6) if evaluation.cases else None,
        "failed": list(evaluation.failed),
        "tokens_per_s": evaluation.tokens_per_s or None,
        "ttft_s": evaluation.ttft_s or None,
        "ttft_p95_s": evaluation.ttft_p95_s or None,
    }
