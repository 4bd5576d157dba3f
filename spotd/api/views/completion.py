"""How a job goes on, as the API has it: burn rate, what is left, when it ends and at what cost."""

from __future__ import annotations

from typing import Any

from spotd.api.request.request import ApiRequest
from spotd.api.views.job_bill import Bill, OnDemand
from spotd.api.views.resources import iso, usd
from spotd.domain.job import Job
from spotd.history.completion_estimate import CompletionEstimate, JobRecord, outlook
from spotd.history.completion_interval import COVERAGE, Range
from spotd.money.units import US_PER_H
from spotd.planner.core.shard_stores import egress_microusd_per_h
from spotd.store.budget_queries import carried_by
from spotd.store.checkpoint_costs import MONTH_H
from spotd.store.job_history import facts_of


def outlook_data(
    call: ApiRequest,
    job: Job,
    total: Bill,
    instead: OnDemand | None,
    storage_usd_per_month: float | None,
) -> dict[str, Any]:
    """Beside the counterfactuals: the same work on demand up to its end. `total` is the bill so
    far, `instead` what that work would have cost."""
    now_us = call.now_us
    facts = facts_of(call.backing.store, job, call.backing.market(now_us), now_us)
    found = outlook(facts)
    done = found.completion
    hours = done.hours.middle if done else 0.0
    measured = found.pace
    return {
        "usd_per_hour": usd(found.microusd_per_h),
        "mean_usd_per_hour": usd(found.mean_microusd_per_h),
        "step": found.step,
        "saved_step": found.saved_step,
        "steps": found.steps or None,
        "steps_left": max(0, found.steps - found.step) if found.steps else None,
        "step_s": round(measured.step_s, 6) if measured else None,
        "measured_steps": measured.steps if measured else 0,
        "left_hours": round(found.left_s / 3600, 6) if found.left_s else None,
        "unknown": found.unknown,
        "try": found.advice,
        "coverage": COVERAGE,
        "hours": _between(done.hours, 6) if done else None,
        "finish": _finish(done.hours, now_us) if done else None,
        "interruptions": _between(done.interruptions, 0) if done else None,
        "final_usd": _final(found),
        "storage_left_usd": _storage(storage_usd_per_month, hours),
        "egress_left_usd": _egress(facts, hours),
        "used_up_at": _used_up(
            found, job, carried_by(call.backing.store).get(job.id, (0, 0)), now_us
        ),
        "by": list(found.notes),
        "on_demand": _on_demand(found, total, instead),
    }


def _between(one: Range, digits: int) -> dict[str, float]:
    return {name: round(value, digits) for name, value in vars(one).items()}


def _finish(hours: Range, now_us: int) -> dict[str, str | None]:
    return {name: iso(now_us + round(value * US_PER_H)) for name, value in vars(hours).items()}


def _final(found: CompletionEstimate) -> dict[str, float] | None:
    """Of its machines, what is spent included."""
    ends = found.final_microusd
    names = ("low", "middle", "high")
    return dict(zip(names, map(usd, ends), strict=True)) if ends else None


def _storage(usd_per_month: float | None, hours: float) -> float | None:
    """Of the checkpoints that it keeps, until its end; None where no price is known."""
    return None if usd_per_month is None else round(usd_per_month * hours / MONTH_H, 6)


def _egress(facts: JobRecord, hours: float) -> float | None:
    """Of what leaves the cloud of its newest machine until its end; None where it is not known."""
    node = max(facts.nodes, key=lambda one: one.requested_at_us, default=None)
    per_h = egress_microusd_per_h(node.offer, facts.job.spec, facts.market) if node else None
    return None if per_h is None else usd(round(per_h * hours))


def _used_up(
    found: CompletionEstimate, job: Job, carried: tuple[int, int], now_us: int
) -> str | None:
    """When its max_cost_usd is, at the present rate; None where it has none, or nothing runs.
    `carried`: what its checkpoints cost, and an hour."""
    cost, each_h = carried
    left = job.spec.max_cost_microusd - found.spent_microusd - cost
    if not job.spec.max_cost_microusd or not found.microusd_per_h or left <= 0:
        return None
    return iso(now_us + left * US_PER_H // (found.microusd_per_h + each_h))


def _on_demand(
    found: CompletionEstimate, total: Bill, instead: OnDemand | None
) -> dict[str, Any] | None:
    """At its end: what it would have cost on demand, without any interruption from now on. The
    saving is at most the discount of the same hours."""
    ends, done = found.final_microusd, found.completion
    if ends is None or done is None or instead is None or not found.list_left_microusd:
        return None
    whole = instead.list_microusd + found.list_left_microusd
    best = instead.best_microusd + found.best_left_microusd
    same = total.list_microusd + found.list_left_microusd * done.hours.middle * 3600 / found.left_s
    discount = 1 - ends[1] / same
    return {
        "final_usd": usd(whole),
        "best_final_usd": usd(best) if found.best_left_microusd else None,
        "saving": round(min(1 - ends[1] / whole, discount), 4) if whole else None,
        "discount": round(discount, 4),
    }
