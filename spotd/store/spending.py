"""What the ledger says of budgets: whose each segment is, and which jobs may go beyond them."""

from __future__ import annotations

from spotd.money.budget import DAY_US, Spending
from spotd.store.base import Store
from spotd.store.stretches import stretch_of

OVERRIDE = "budget_override"  # the kind of the event that says so, good for its month


def override_key(job_id: str) -> str:
    """Of that event."""
    return f"{OVERRIDE}:{job_id}"


LATELY_US = 40 * DAY_US  # the longest month, and the days that a forecast looks back


def spendings(store: Store, now_us: int) -> list[Spending]:
    """Every segment of lately that costs something."""
    rows = [
        row
        for row in store.segments()
        if row.state != "void" and (not row.end_us or row.end_us > now_us - LATELY_US)
    ]
    ids = sorted({row.job_id for row in rows})
    users = store.job_users(ids)
    found = {one: store.find_job(one) for one in ids}
    projects = {one: job.spec.project for one, job in found.items() if job is not None}
    return [
        Spending(
            *(row.job_id, users.get(row.job_id, ""), stretch_of(row, now_us)),
            project=projects.get(row.job_id, ""),
        )
        for row in rows
    ]
