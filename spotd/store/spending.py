"""What the ledger says of budgets: whose each segment is, and which jobs may go beyond them."""

from __future__ import annotations

from spotd.money.budget import Spending
from spotd.store.base import Store
from spotd.store.stretches import stretch_of

OVERRIDE = "budget_override"  # the kind of the event that says so, good for its month


def override_key(job_id: str) -> str:
    """Of that event."""
    return f"{OVERRIDE}:{job_id}"


def spendings(store: Store, now_us: int) -> list[Spending]:
    """Every segment that costs something."""
    rows = [row for row in store.segments() if row.state != "void"]
    users = store.job_users({row.job_id for row in rows})
    return [
        Spending(row.job_id, users.get(row.job_id, ""), stretch_of(row, now_us)) for row in rows
    ]
