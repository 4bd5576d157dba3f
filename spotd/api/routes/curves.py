"""The curves of a job: loss and speed over steps, and cost over time."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from spotd.api.request.request import ApiRequest
from spotd.api.views.job_account import ControlBoxCost, account_of, records_of
from spotd.api.views.resources import iso, where_data
from spotd.domain.job import Job
from spotd.domain.node import Node
from spotd.history.curves import AttemptCurves, StepReport, curves_of
from spotd.money.report import report_of
from spotd.money.units import usd
from spotd.store.checkpoint_costs import Window
from spotd.store.progress import ProgressRow

MOST_POINTS = 2000
COST_MOMENTS = 24


def job_curves(call: ApiRequest) -> dict[str, Any]:
    """Loss and speed of each attempt, thinned to `points` in all, and the cost of its machines over
    time with the same work on demand; null where that is not known."""
    job, store = call.job(), call.context.store
    most = call.number("points", 400, 10, MOST_POINTS)
    rows, nodes = store.progress.rows(job.id), store.nodes.of_job(job.id)
    curves = curves_of([_report(row) for row in rows], most)
    items = [_attempt(attempt, nodes) for attempt in curves]
    cost = _cost(call, job)
    return {"kind": "Curves", "job": job.name, "items": items, "cost": cost,
            "max_cost_usd": usd(job.spec.limits.max_cost_microusd) or None}  # fmt: skip


def _report(row: ProgressRow) -> StepReport:
    return StepReport(
        generation=row.generation,
        first=row.from_step,
        last=row.to_step,
        losses=row.losses,
        tokens=row.tokens,
        busy_s=row.busy_s,
    )


def _attempt(curves: AttemptCurves, nodes: list[Node]) -> dict[str, Any]:
    own = [node for node in nodes if node.generation == curves.generation and not node.rank]
    node = next((node for node in own if node.chosen), own[0] if own else None)
    return {
        "generation": curves.generation,
        "where": where_data(node) if node else None,
        "loss": [[step, loss if math.isfinite(loss) else None] for step, loss in curves.loss],
        "steps_per_s": [[step, round(value, 6)] for step, value in curves.steps_per_s],
        "tokens_per_s": [[step, round(value, 3)] for step, value in curves.tokens_per_s],
    }


def _cost(call: ApiRequest, job: Job) -> list[dict[str, Any]]:
    """Return the cost of the machines up to some moments, without anything on top."""
    records, now_us = records_of(call.context.store, job), call.now_us
    rows = [row for row in records.segments if row.state != "void"]
    if not rows:
        return []
    begin_us = min(row.start_us for row in rows)
    end_us = max(row.end_us or now_us for row in rows)
    market, window = call.context.market(now_us), Window(0, now_us)
    account = account_of(records, market, ControlBoxCost(0, {}, 0), window, now_us)
    account = replace(account, extras=())
    points = []
    for number in range(COST_MOMENTS + 1):
        at_us = begin_us + (end_us - begin_us) * number // COST_MOMENTS
        report = report_of(account, 0, at_us)
        told = report.told
        on_demand = usd(told.total_microusd) if told else None
        cost = usd(report.total_microusd)
        points.append({"at": iso(at_us), "cost_usd": cost, "on_demand_usd": on_demand})
    return points
