"""The completion estimate of a job as JSON: burn rate, remaining work, end time and final cost."""

from __future__ import annotations

from typing import Any

from spotd.api.request.request import ApiRequest
from spotd.api.views.job_bill import Bill, OnDemand
from spotd.api.views.resources import iso
from spotd.domain.job import Job
from spotd.domain.units import MONTH_H, US_PER_H
from spotd.history.completion_estimate import CompletionEstimate, JobRecord, estimate_completion
from spotd.history.completion_interval import COVERAGE, Range
from spotd.money.units import usd
from spotd.planner.core.shard_stores import egress_microusd_per_h
from spotd.store.budget_queries import carried_by
from spotd.store.job_history import facts_of


def completion_data(
    call: ApiRequest,
    job: Job,
    total: Bill,
    instead: OnDemand | None,
    storage_usd_per_month: float | None,
) -> dict[str, Any]:
    """Return the estimate as JSON.

    `total` is the bill so far, and `instead` the cost of the same work on demand. The reply extends
    that comparison up to the end of the job.
    """
    now_us = call.now_us
    facts = facts_of(call.context.store, job, call.context.market(now_us), now_us)
    estimate = estimate_completion(facts)
    completion = estimate.completion
    hours = completion.hours.middle if completion else 0.0
    pace = estimate.pace
    return {
        "usd_per_hour": usd(estimate.microusd_per_h),
        "mean_usd_per_hour": usd(estimate.mean_microusd_per_h),
        "step": estimate.step,
        "saved_step": estimate.saved_step,
        "steps": estimate.steps or None,
        "steps_left": max(0, estimate.steps - estimate.step) if estimate.steps else None,
        "step_s": round(pace.step_s, 6) if pace else None,
        "measured_steps": pace.steps if pace else 0,
        "left_hours": round(estimate.left_s / 3600, 6) if estimate.left_s else None,
        "unknown": estimate.unknown,
        "try": estimate.advice,
        "coverage": COVERAGE,
        "hours": _range_data(completion.hours, 6) if completion else None,
        "finish": _finish(completion.hours, now_us) if completion else None,
        "interruptions": _range_data(completion.interruptions, 0) if completion else None,
        "final_usd": _final(estimate),
        "storage_left_usd": _storage(storage_usd_per_month, hours),
        "egress_left_usd": _egress(facts, hours),
        "used_up_at": _used_up(
            estimate, job, carried_by(call.context.store).get(job.id, (0, 0)), now_us
        ),
        "by": list(estimate.notes),
        "on_demand": _on_demand(estimate, total, instead),
    }


def _range_data(values: Range, digits: int) -> dict[str, float]:
    return {name: round(value, digits) for name, value in vars(values).items()}


def _finish(hours: Range, now_us: int) -> dict[str, str | None]:
    return {name: iso(now_us + round(value * US_PER_H)) for name, value in vars(hours).items()}


def _final(estimate: CompletionEstimate) -> dict[str, float] | None:
    """Return the final cost of the job's machines, money spent so far included."""
    final = estimate.final_microusd
    names = ("low", "middle", "high")
    return dict(zip(names, map(usd, final), strict=True)) if final else None


def _storage(usd_per_month: float | None, hours: float) -> float | None:
    """Return the storage cost of retained checkpoints until the end; None without a known price."""
    return None if usd_per_month is None else round(usd_per_month * hours / MONTH_H, 6)


def _egress(facts: JobRecord, hours: float) -> float | None:
    """Return the cost of egress from the newest machine's cloud until the end.

    None where it is not known.
    """
    node = max(facts.nodes, key=lambda node: node.requested_at_us, default=None)
    per_h = egress_microusd_per_h(node.offer, facts.job.spec, facts.market) if node else None
    return None if per_h is None else usd(round(per_h * hours))


def _used_up(
    estimate: CompletionEstimate, job: Job, carried: tuple[int, int], now_us: int
) -> str | None:
    """Return when the job's max_cost_usd is used up at the present rate.

    None if it has no such limit, or nothing runs. `carried` is the cost of its checkpoints so far,
    and per hour, in micro-USD.
    """
    carried_cost, carried_per_h = carried
    remaining = job.spec.limits.max_cost_microusd - estimate.spent_microusd - carried_cost
    if not job.spec.limits.max_cost_microusd or not estimate.microusd_per_h or remaining <= 0:
        return None
    return iso(now_us + remaining * US_PER_H // (estimate.microusd_per_h + carried_per_h))


def _on_demand(
    estimate: CompletionEstimate, total: Bill, instead: OnDemand | None
) -> dict[str, Any] | None:
    """Return the job's cost on demand at its end.

    It assumes no interruption from now on. The saving is at most the discount of the same hours.
    """
    final, completion = estimate.final_microusd, estimate.completion
    if final is None or completion is None or instead is None or not estimate.list_left_microusd:
        return None
    total_on_demand = instead.list_microusd + estimate.list_left_microusd
    best_on_demand = instead.best_microusd + estimate.best_left_microusd
    same_hours = (
        total.list_microusd
        + estimate.list_left_microusd * completion.hours.middle * 3600 / estimate.left_s
    )
    discount = 1 - final[1] / same_hours
    return {
        "final_usd": usd(total_on_demand),
        "best_final_usd": usd(best_on_demand) if estimate.best_left_microusd else None,
        "saving": round(min(1 - final[1] / total_on_demand, discount), 4)
        if total_on_demand
        else None,
        "discount": round(discount, 4),
    }
