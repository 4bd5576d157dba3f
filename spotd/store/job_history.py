"""Load the record of a job that its completion is estimated from."""

from __future__ import annotations

from spotd.domain.job import Job
from spotd.domain.market import Market
from spotd.history.completion_estimate import JobRecord
from spotd.store.interface import Store
from spotd.store.ledger import stretch_of
from spotd.store.progress import steps_of


def facts_of(store: Store, job: Job, market: Market, now_us: int) -> JobRecord:
    """The job's nodes, segments and steps. `market` is the fleet's record."""
    rows = (row for row in store.ledger.segments(job.id) if row.state != "void")
    return JobRecord(
        job,
        store.nodes.of_job(job.id),
        [stretch_of(row, now_us) for row in rows],
        [steps_of(row) for row in store.progress.rows(job.id)],
        market,
        now_us,
    )
