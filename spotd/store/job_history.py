"""What is on record of a job, for how it goes on."""

from __future__ import annotations

from spotd.domain.job import Job
from spotd.domain.market import Market
from spotd.history.completion_estimate import JobRecord
from spotd.store.interface import Store
from spotd.store.ledger_queries import steps_of, stretch_of


def facts_of(store: Store, job: Job, market: Market, now_us: int) -> JobRecord:
    """`market` has the record of this fleet's machines (`past`)."""
    rows = (row for row in store.segments(job.id) if row.state != "void")
    return JobRecord(
        job,
        store.job_nodes(job.id),
        [stretch_of(row, now_us) for row in rows],
        [steps_of(row) for row in store.progress(job.id)],
        market,
        now_us,
    )
