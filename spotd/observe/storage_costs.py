"""Compute the monthly cost of jobs' checkpoints and data, and record it for every money limit."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from spotd.domain.datasets import DataSet
from spotd.domain.fast_replace import changed
from spotd.domain.job import Job
from spotd.domain.market import Market
from spotd.domain.units import DAY_US, US_PER_H
from spotd.money.focus import month_of, months
from spotd.store.checkpoint_costs import Window
from spotd.store.dataset_costs import freight_of
from spotd.store.interface import Store
from spotd.store.output_costs import output_costs
from spotd.store.storage_costs import StorageCost, extras_of

NONE: Mapping[str, DataSet] = {}
NEWEST = 500  # jobs: one may have come and gone between two looks

_LOG = structlog.get_logger(__name__)


def record_carriage(
    store: Store,
    places: Mapping[str, tuple[str, ...]],
    now_us: int,
    datasets: Mapping[str, DataSet] = NONE,
) -> None:
    """Record the costs of unfinished jobs, of jobs finished within a day, and of jobs with stored
    data.

    `places` has the places of stores (planner/core/shard_stores.py), `datasets` the price of
    transferring a GB of a data set.
    """
    market = changed(store.market.load(now_us), places=places, datasets=datasets)
    known: dict[str, dict[int, StorageCost]] = {}
    for row in store.storage_costs.rows():
        known.setdefault(row.job_id, {})[row.month_us] = row
    jobs = {job.id: job for job in store.jobs.rows(finished=False)}
    ended, _ = store.jobs.ended(NEWEST)
    jobs.update({job.id: job for job in ended if job.end.finished_at_us > now_us - DAY_US})
    for job_id in sorted(set(known) - set(jobs)):
        # What a finished one keeps changes slowly, and all that it ever saved is read for that.
        if max(row.at_us for row in known[job_id].values()) > now_us - DAY_US:
            continue
        if (job := store.jobs.find(job_id)) is not None:
            jobs[job_id] = job
    for job in jobs.values():
        try:
            _record(store, job, market, known.get(job.id, {}), now_us)
        except (ArithmeticError, ValueError):  # one job's record is in no budget's way
            _LOG.exception("the cost of a job's checkpoints cannot be computed", job=job.id)


def record_job(
    store: Store,
    job: Job,
    places: Mapping[str, tuple[str, ...]],
    now_us: int,
    datasets: Mapping[str, DataSet] = NONE,
) -> None:
    """Record one job's costs at once, before something spends more."""
    market = changed(store.market.load(now_us), places=places, datasets=datasets)
    known = {row.month_us: row for row in store.storage_costs.rows() if row.job_id == job.id}
    _record(store, job, market, known, now_us)


def _record(
    store: Store, job: Job, market: Market, known: Mapping[int, StorageCost], now_us: int
) -> None:
    rows = [row for row in store.checkpoints.rows(job.id) if row.bytes]
    shipments, uploads = store.transfers.rows(job.id), store.outputs.rows(job.id)
    if not rows and not shipments and not uploads:
        return
    nodes = store.nodes.of_job(job.id)

    def cost(since_us: int, until_us: int) -> int:
        window = Window(since_us, until_us)
        items, _ = extras_of(job, nodes, rows, market, window, now_us)
        more, _ = freight_of(job, nodes, shipments, market, window, now_us)
        outputs, _ = output_costs(job, nodes, uploads, market, window, now_us)
        return sum(item.cost_microusd for item in (*items, *more, *outputs))

    first_us = min(
        *(row.committed_at_us for row in rows),
        *(row.began_at_us for row in shipments),
        *(row.stored_at_us for row in uploads),
        now_us,
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
        row = StorageCost(job.id, month_us, cost(from_us, min(to_us, now_us)), rate, now_us)
        if row.microusd or before is not None:
            store.storage_costs.record(row)
