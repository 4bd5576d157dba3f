"""Routes about the cost of jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from providers.catalogs.storage import storage_price_of
from spotd.api.request.request import ApiRequest
from spotd.api.views.completion import completion_data
from spotd.api.views.diagnosis import total_use
from spotd.api.views.job_account import whole_report
from spotd.api.views.job_bill import Bill, OnDemand, all_reports, bill, on_demand
from spotd.api.views.resources import iso, where_data
from spotd.domain.job import Job
from spotd.domain.node import Node
from spotd.money.counterfactual import BEST, NEEDED
from spotd.money.hour_breakdown import TimeUse
from spotd.money.report import Report
from spotd.money.units import usd
from spotd.store.budget_queries import carried_by
from spotd.store.ledger import SegmentRow


def job_cost(call: ApiRequest) -> dict[str, Any]:
    """Show the cost of one job so far, per node and in total, and its on-demand equivalent."""
    job = call.job()
    total, instead, cost_data = _job_cost(call, job, carried_by(call.context.store))
    stored, use = _kept_checkpoints(call, job), total_use(call.context.store, job)
    outlook = completion_data(call, job, total, instead, stored["usd_per_month"])
    return {"kind": "Cost", **cost_data, "kept": stored, "use": use, "outlook": outlook}


def all_costs(call: ApiRequest) -> dict[str, Any]:
    """List the costs of jobs, newest first, at most `limit`, and the spend of all `total` jobs."""
    store = call.context.store
    newest, total = store.jobs.newest(call.number("limit", 100, 1, 10_000))
    carried = carried_by(store)
    items = [_job_cost(call, job, carried)[2] for job in newest]
    spend = usd(bill(store.ledger.segments(), call.now_us).spend_microusd)
    return {"kind": "CostList", "items": items, "total": total, "spend_usd": spend}


def _job_cost(
    call: ApiRequest, job: Job, carried: Mapping[str, tuple[int, int]]
) -> tuple[Bill, OnDemand | None, dict[str, Any]]:
    """Return the bill, the same work on demand, and both as JSON.

    `carried` is by job id: the cost of checkpoints and data so far, and per hour, in micro-USD; see
    spotd/store/budget_queries.py.
    """
    store, now_us = call.context.store, call.now_us
    segments = store.ledger.segments(job.id)
    progress = all_reports(store.progress.rows(job.id), job.progress.first_step_at_us)
    total = bill(segments, now_us)
    nodes, num_nodes = store.nodes.of_job(job.id), job.spec.resources.num_nodes
    gangs = {node.generation: node.gang_size for node in nodes if node.gang_size}
    instead = on_demand(total, segments, progress, num_nodes, gangs)
    report = whole_report(call, job)
    told, known = report.told, report.useful.us and TimeUse.UNTOLD not in report.uses
    data = {
        "job_id": job.id,
        "job": job.name,
        **_bill_data(total),
        "useful_hours": _hours(report.useful.us) if known else None,
        "on_demand_usd": usd(told.total_microusd) if told else None,
        "on_demand_best_usd": _best_usd(report) if told else None,
        "saving": None if told is None or told.saving is None else round(told.saving, 4),
        "carried_usd": usd(carried.get(job.id, (0, 0))[0]),
        "max_cost_usd": usd(job.spec.limits.max_cost_microusd) or None,
        "nodes": [
            _node_cost(node, [s for s in segments if s.node_id == node.id], now_us)
            for node in nodes
        ],
    }
    return total, instead, data


def _best_usd(report: Report) -> float | None:
    """Return the same work on demand in the cheapest place that has such a machine."""
    best = (item for item in report.instead if (item.name, item.basis) == (BEST, NEEDED))
    return next((usd(item.total_microusd) for item in best), None)


def _kept_checkpoints(call: ApiRequest, job: Job) -> dict[str, Any]:
    """Return the checkpoints that the job keeps, and their storage cost per month by a dated list.

    The cost is None where no price is known. It is part of no other sum.
    """
    checkpoint = job.spec.checkpoint
    rows = [row for row in call.context.store.checkpoints.rows(job.id) if row.bytes]
    rows.sort(key=lambda row: (row.committed_at_us, row.step))
    checkpoints = rows[-checkpoint.keep :]
    size = sum(row.bytes for row in checkpoints)
    price = storage_price_of(checkpoint.store)
    return {
        "checkpoints": len(checkpoints),
        "bytes": size,
        "usd_per_month": usd(price.microusd_per_month(size)) if price else None,
        "price_of": f"{price.storage_class}, {price.region}, {price.dated}" if price else None,
    }


def _bill_data(total: Bill) -> dict[str, Any]:
    return {
        "paid_hours": _hours(total.paid_us),
        "prepaid_hours": _hours(total.prepaid_us),
        "spend_usd": usd(total.spend_microusd),
        "list_usd": usd(total.list_microusd),
        "best_on_demand_usd": usd(total.best_microusd),
        "discount": None if total.discount is None else round(total.discount, 4),
        "estimated": total.estimated,
    }


def _node_cost(node: Node, segments: Sequence[SegmentRow], now_us: int) -> dict[str, Any]:
    return {
        "node_id": node.id,
        **where_data(node),
        **_bill_data(bill(segments, now_us)),
        "segments": [
            {
                "kind": row.kind,
                "state": row.state,
                "start": iso(row.start_us),
                "end": iso(row.end_us),
                "rate_usd_per_h": usd(row.rate_microusd_per_h),
                "list_usd_per_h": usd(row.list_rate_microusd_per_h),
                "best_on_demand_usd_per_h": usd(row.best_on_demand_microusd_per_h),
                "price_source": row.price_source,
            }
            for row in segments
        ],
    }


def _hours(duration_us: int) -> float:
    return round(duration_us / 3.6e9, 6)
