"""What is on record of a job, for how it goes on."""

from __future__ import annotations

from spotd.history.outlook import Facts
from spotd.model import Job, Market
from spotd.store.base import Store
from spotd.store.stretches import steps_of, stretch_of


def facts_of(store: Store, job: Job, market: Market, now_us: int) -> Facts:
    """`market` has the record of this fleet's machines (`past`)."""
    rows = (row for row in store.segments(job.id) if row.state != "void")
    return Facts(
        job,
        store.job_nodes(job.id),
        [stretch_of(row, now_us) for row in rows],
        [steps_of(row) for row in store.progress(job.id)],
        market,
        now_us,
    )
