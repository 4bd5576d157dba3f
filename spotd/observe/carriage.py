"""What the checkpoints and data of jobs cost is reckoned from what is on record, and recorded by
the month, so that every limit of money counts it."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from spotd.changed import changed
from spotd.datasets import DataSet
from spotd.model import Job, Market
from spotd.money.budget import DAY_US
from spotd.money.focus import month_of, months
from spotd.money.units import US_PER_H
from spotd.store.base import Store
from spotd.store.carried import extras_of
from spotd.store.freight_costs import freight_of
from spotd.store.invoice_records import Carriage
from spotd.store.keep_costs import Window

NONE: Mapping[str, DataSet] = {}
NEWEST = 500  # jobs: one may have come and gone between two looks

_LOG = structlog.get_logger(__name__)


def record_carriage(
    store: Store,
    places: Mapping[str, tuple[str, ...]],
    now_us: int,
    datasets: Mapping[str, DataSet] = NONE,
) -> None:
    """Of unfinished jobs, of those that finished within a day, and of finished ones that had any:
    what they keep goes on costing. `places` says where stores are (see decide/carriage.py), and
    `datasets` what somebody has said that a GB of one costs on its way."""
    market = changed(store.load_market(now_us), places=places, datasets=datasets)
    known: dict[str, dict[int, Carriage]] = {}
    for row in store.carriages():
        known.setdefault(row.job_id, {})[row.month_us] = row
    jobs = {job.id: job for job in store.jobs(finished=False)}
    ended, _ = store.ended_jobs(NEWEST)
    jobs.update({job.id: job for job in ended if job.finished_at_us > now_us - DAY_US})
    for job_id in sorted(set(known) - set(jobs)):
        # What a finished one keeps changes slowly, and all that it ever saved is read for that.
        if max(row.at_us for row in known[job_id].values()) > now_us - DAY_US:
            continue
        if (job := store.find_job(job_id)) is not None:
            jobs[job_id] = job
    for job in jobs.values():
        try:
            _record(store, job, market, known.get(job.id, {}), now_us)
        except (ArithmeticError, ValueError):  # one job's record is in no budget's way
            _LOG.exception("what a job's checkpoints cost cannot be reckoned", job=job.id)


def record_job(
    store: Store,
    job: Job,
    places: Mapping[str, tuple[str, ...]],
    now_us: int,
    datasets: Mapping[str, DataSet] = NONE,
) -> None:
    """Of one job, at once: what is about to spend more must not go by what it cost a while ago."""
    market = changed(store.load_market(now_us), places=places, datasets=datasets)
    known = {row.month_us: row for row in store.carriages() if row.job_id == job.id}
    _record(store, job, market, known, now_us)


def _record(
    store: Store, job: Job, market: Market, known: Mapping[int, Carriage], now_us: int
) -> None:
    rows = [row for row in store.checkpoints(job.id) if row.bytes]
    shipments = store.shipments(job.id)
    if not rows and not shipments:
        return
    nodes = store.job_nodes(job.id)

    def cost(since_us: int, until_us: int) -> int:
        window = Window(since_us, until_us)
        items, _ = extras_of(job, nodes, rows, market, window, now_us)
        more, _ = freight_of(job, nodes, shipments, market, window, now_us)
        return sum(item.cost_microusd for item in (*items, *more))

    first_us = min(
        *(row.committed_at_us for row in rows), *(row.began_at_us for row in shipments), now_us
    )
    for from_us, to_us in months(first_us, now_us + 1):
        month_us, end_us = month_of(from_us)
        before = known.get(month_us)
        if end_us <= now_us and before is not None and before.at_us >= end_us + DAY_US:
            continue  # it is over, and was recorded when machines had had a day to tell of it
        rate = 0
        if end_us > now_us:
            lately_us = max(now_us - DAY_US, first_us)
            passed_us = max(now_us - lately_us, US_PER_H)
            rate = cost(lately_us, now_us) * US_PER_H // passed_us
        row = Carriage(job.id, month_us, cost(from_us, min(to_us, now_us)), rate, now_us)
        if row.microusd or before is not None:
            store.record_carriage(row)
