"""What evaluations of a job's model measured: handed in, and shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spotd.api.request.request import ApiRequest, bad_input
from spotd.api.views.resources import iso
from spotd.domain.evaluation import EvaluationError, read_evaluation
from spotd.domain.job import Job
from spotd.store.evaluation_records import EvaluationRow
from spotd.store.interface import Store


def import_results(call: ApiRequest) -> dict[str, Any]:
    """Put the measurement of the body on record with the job; see ResultRecords."""
    job = call.job()
    try:
        told = read_evaluation(call.body)
    except EvaluationError as error:
        raise bad_input(f"{error.field}: {error.text}", error.fix) from None
    row = EvaluationRow(job.id, call.now_us, call.actor, told)
    new = call.backing.store.record_evaluation(row)
    return {"kind": "Evaluation", "job": job.name, "new": new, **result_data(row)}


def newest(rows: Sequence[EvaluationRow]) -> list[EvaluationRow]:
    """The last of each suite, by name."""
    found = {row.told.suite: row for row in rows}
    return [found[suite] for suite in sorted(found)]


def evaluated(store: Store, job: Job) -> list[EvaluationRow]:
    """The newest of each suite that the job handed in, or a job that came after it: the phase that
    validates what this one trained."""
    own = store.evaluations(job.id)
    if own:
        return newest(own)
    rows = store.evaluations()
    after = {name for name in {row.job_id for row in rows} if _comes_after(store, name, job)}
    return newest([row for row in rows if row.job_id in after])


def _comes_after(store: Store, job_id: str, job: Job) -> bool:
    found = store.find_job(job_id)
    return found is not None and found.spec.after == job.id


def result_data(row: EvaluationRow) -> dict[str, Any]:
    """As JSON; what was not measured is null."""
    told = row.told
    return {
        "suite": told.suite,
        "at": iso(row.at_us),
        "source": row.source,
        "cases": told.cases or None,
        "passed": told.passed if told.cases else None,
        "share": round(told.passed / told.cases, 6) if told.cases else None,
        "failed": list(told.failed),
        "tokens_per_s": told.tokens_per_s or None,
        "ttft_s": told.ttft_s or None,
        "ttft_p95_s": told.ttft_p95_s or None,
    }
