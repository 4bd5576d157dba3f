"""Spending by job, user and project, and the jobs that may exceed a budget."""

from __future__ import annotations

from spotd.domain.units import DAY_US
from spotd.money.budget import Spending, StorageSpending
from spotd.store.interface import Store
from spotd.store.ledger import stretch_of

OVERRIDE = "budget_override"  # the kind of the event that says so, good for its month


def override_key(job_id: str) -> str:
    """The key of that event."""
    return f"{OVERRIDE}:{job_id}"


LATELY_US = 40 * DAY_US  # the longest month, and the days that a forecast looks back


def spendings(store: Store, now_us: int) -> list[Spending]:
    """Every segment of the last LATELY_US that costs something."""
    rows = [
        row
        for row in store.ledger.segments()
        if row.state != "void" and (not row.end_us or row.end_us > now_us - LATELY_US)
    ]
    ids = sorted({row.job_id for row in rows})
    users = store.jobs.users(ids)
    jobs = {one: store.jobs.find(one) for one in ids}
    projects = {one: job.spec.queue.project for one, job in jobs.items() if job is not None}
    return [
        Spending(
            job_id=row.job_id,
            user=users.get(row.job_id, ""),
            stretch=stretch_of(row, now_us),
            project=projects.get(row.job_id, ""),
        )
        for row in rows
    ]


def carried(store: Store, month_us: int) -> list[StorageSpending]:
    """Storage costs of the month that starts at `month_us`, by job, with user and project."""
    rows = store.storage_costs.rows(month_us)
    users = store.jobs.users([row.job_id for row in rows])
    jobs = {row.job_id: store.jobs.find(row.job_id) for row in rows}
    return [
        StorageSpending(
            user=users.get(row.job_id, ""),
            microusd=row.microusd,
            microusd_per_h=row.microusd_per_h,
            project=job.spec.queue.project if (job := jobs[row.job_id]) else "",
        )
        for row in rows
    ]


def carried_by(store: Store) -> dict[str, tuple[int, int]]:
    """Storage costs by job in micro-USD: in total, and per hour now."""
    sums: dict[str, tuple[int, int]] = {}
    for row in store.storage_costs.rows():
        cost, rate = sums.get(row.job_id, (0, 0))
        sums[row.job_id] = cost + row.microusd, rate + row.microusd_per_h
    return sums
