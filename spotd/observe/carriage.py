"""What the checkpoints of jobs cost is reckoned from what is on record, and recorded by the month,
so that every limit of money counts it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spotd.changed import changed
from spotd.model import Job
from spotd.money.budget import DAY_US
from spotd.money.focus import month_of, months
from spotd.money.units import US_PER_H
from spotd.store.base import Store
from spotd.store.carried import extras_of
from spotd.store.invoice_records import Carriage
from spotd.store.keep_costs import Window


def record_carriage(store: Store, places: Mapping[str, tuple[str, ...]], now_us: int) -> None:
    """Of unfinished jobs, and of finished ones that had any: what they keep goes on costing.
    `places` says where stores are (see decide/carriage.py)."""
    market = changed(store.load_market(now_us), places=places)
    known = {(row.job_id, row.month_us): row for row in store.carriages()}
    ids = {job.id for job in store.jobs(finished=False)} | {job_id for job_id, _ in known}
    for job_id in sorted(ids):
        job = store.find_job(job_id)
        if job is None or (job.finished_at_us and _lately(known.values(), job, now_us)):
            continue
        rows = [row for row in store.checkpoints(job_id) if row.bytes]
        if not rows:
            continue
        nodes = store.job_nodes(job_id)

        def cost(since_us: int, until_us: int) -> int:
            window = Window(since_us, until_us)
            items, _ = extras_of(job, nodes, rows, market, window, now_us)  # noqa: B023
            return sum(item.cost_microusd for item in items)

        first_us = min(row.committed_at_us for row in rows)
        for from_us, to_us in months(first_us, now_us + 1):
            month_us, end_us = month_of(from_us)
            before = known.get((job_id, month_us))
            if end_us <= now_us and before is not None and before.at_us >= end_us:
                continue  # it is over, and was recorded since
            rate = 0
            if end_us > now_us:
                lately_us = max(now_us - DAY_US, first_us)
                passed_us = max(now_us - lately_us, US_PER_H)
                rate = cost(lately_us, now_us) * US_PER_H // passed_us
            row = Carriage(job_id, month_us, cost(from_us, min(to_us, now_us)), rate, now_us)
            if row.microusd or before is not None:
                store.record_carriage(row)


def _lately(known: Iterable[Carriage], job: Job, now_us: int) -> bool:
    """It was reckoned since it finished, and within a day: what it keeps changes slowly, and all
    that it ever saved is read for that."""
    newest_us = max((row.at_us for row in known if row.job_id == job.id), default=0)
    return newest_us > max(job.finished_at_us, now_us - DAY_US)
