"""Budgets as the API has them: how they stand, and what they refuse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spotd.api.request.request import ApiError, ApiRequest
from spotd.api.views.resources import iso, usd
from spotd.domain.events import Event, Severity
from spotd.domain.job import Desired, Job, JobSpec
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.money.approval import REFUSE
from spotd.money.budget import Budget, BudgetStatus, Plan, Spending, refusal, standing
from spotd.money.focus import month_of
from spotd.planner.core.shard_stores import carried_microusd_per_h
from spotd.planner.placement.rank import rank
from spotd.store.budget_queries import OVERRIDE, carried, carried_by, override_key, spendings
from spotd.store.dataset_costs import paid_by_copy


def list_budgets(call: ApiRequest) -> dict[str, Any]:
    """Each budget of the configuration: what is spent this month, the burn rate, the forecast."""
    now_us = call.now_us
    store, month = call.backing.store, month_of(now_us)
    rows, extra = spendings(store, now_us), carried(store, month[0])
    found = [standing(one, rows, month, now_us, extra) for one in call.backing.budgets()]
    return {"kind": "BudgetList", "items": [_data(one) for one in found]}


def _data(found: BudgetStatus) -> dict[str, Any]:
    forecast = found.forecast
    return {
        "name": found.budget.name,
        "user": found.budget.user,
        "project": found.budget.project,
        "since": iso(found.since_us),
        "until": iso(found.until_us),
        "budget_usd": usd(found.budget.microusd),
        "spent_usd": usd(found.spent_microusd),
        "usd_per_hour": usd(found.microusd_per_h),
        "mean_usd_per_hour": usd(found.mean_microusd_per_h),
        "forecast_usd": usd(round(forecast.middle)),
        "forecast_low_usd": usd(round(forecast.low)),
        "forecast_high_usd": usd(round(forecast.high)),
        "used_up_at": iso(found.reached_at_us),
    }


def check_budgets(call: ApiRequest, user: str, spec: JobSpec, resumed: Job | None = None) -> str:
    """Refuse a job that is to begin, or `resumed` one, where it may cost more than a budget has.
    With `override_budget` in the body it may: the text of what was overridden, "" for nothing."""
    budgets = [one for one in call.backing.budgets() if one.covers(user, spec.project)]
    if not budgets:
        return ""
    store, now_us = call.backing.store, call.now_us
    rows, owners, carriage = spendings(store, now_us), store.job_owners(), carried_by(store)
    running = [
        _plan_of(call, job, owners.get(job.id, ""), rows, carriage)
        for job in store.jobs(finished=False)
        if job.desired is Desired.RUN and (resumed is None or job.id != resumed.id)
    ]
    new = (
        _plan_of(call, resumed, user, rows, carriage)
        if resumed
        else _new_plan(call, user, spec, now_us)
    )
    text = _refused(call, budgets, rows, running, new)
    if text and call.body.get("override_budget") is not True:
        fix = "wait for next month, raise it in config.toml, or --override-budget"
        raise ApiError(409, "refused", text, fix)
    return text


def check_project(call: ApiRequest, spec: JobSpec) -> list[str]:
    """Refuse a job whose project is not approved, or warn of it, as the policy says."""
    approval = call.backing.approval()
    text = approval.lacks(spec.project)
    if text and approval.policy == REFUSE:
        raise ApiError(409, "refused", text, approval.fix(spec.project))
    what = 'with unapproved_projects = "refuse" in [policies] the job would be refused'
    return [f"{text}: {what}; {approval.fix(spec.project)}"] if text else []


def record_override(call: ApiRequest, job: Job, text: str) -> None:
    """Until the month ends no budget stops that job."""
    if text:
        told = f"{call.actor or 'somebody'} lets {job.name} go beyond a budget: {text}"
        key = override_key(job.id)
        event = Event(OVERRIDE, told, severity=Severity.WARNING, alert=True, key=key)
        call.backing.store.add_event(job.id, event, call.now_us)


def _refused(
    call: ApiRequest, budgets: list[Budget], rows: list[Spending], running: list[Plan], new: Plan
) -> str:
    month, now_us = month_of(call.now_us), call.now_us
    extra = carried(call.backing.store, month[0])
    every = (refusal(standing(one, rows, month, now_us, extra), running, new) for one in budgets)
    return next((text for text in every if text), "")


def _new_plan(call: ApiRequest, user: str, spec: JobSpec, now_us: int) -> Plan:
    """At the price of the machine that it would get now, with what its checkpoints cost there as
    far as that is known."""
    market = call.backing.market(now_us)
    ranked = [row for row in rank(spec, market, now_us) if not row.excluded]
    rate = 0
    if ranked:
        offer = ranked[0].offer
        rate = offer.price_microusd_per_h * spec.num_nodes
        rate += carried_microusd_per_h(offer, spec, market)
    hours = _hours_left(spec, now_us, now_us)
    once = spec.wishes.ahead.max_microusd
    return Plan(user, rate, spec.max_cost_microusd, hours, spec.project, once)


def _plan_of(
    call: ApiRequest,
    job: Job,
    user: str,
    rows: list[Spending],
    carriage: Mapping[str, tuple[int, int]],
) -> Plan:
    """At the price of the machines that it has, with what its checkpoints cost of late; or would
    get."""
    spec, now_us = job.spec, call.now_us
    mine = [row.stretch for row in rows if row.job_id == job.id]
    nodes = call.backing.store.job_nodes(job.id)
    live = [node for node in nodes if node.state is not NodeState.GONE]
    cost, each_h = carriage.get(job.id, (0, 0))
    rate = sum(node.offer.price_microusd_per_h for node in live)
    rate = rate + each_h if rate else _new_plan(call, user, spec, now_us).microusd_per_h
    left = 0
    if spec.max_cost_microusd:
        spent = sum(one.spent(0, now_us) for one in mine) + cost
        left = max(1, spec.max_cost_microusd - spent)
    begun_us = job.created_at_us
    if spec.after:  # its time begins with the end of another
        begun_us = min((node.requested_at_us for node in nodes), default=now_us)
    hours = _hours_left(spec, begun_us, now_us)
    once = spec.wishes.ahead.max_microusd
    if once:
        sent = call.backing.store.shipments(job.id)
        once = max(0, once - sum(paid_by_copy(sent, call.backing.market(now_us)).values()))
    return Plan(user, rate, left, hours, spec.project, once)


def _hours_left(spec: JobSpec, since_us: int, now_us: int) -> float:
    """By `max_duration`; 0 where there is none. (A deadline does not end a job.)"""
    if not spec.max_duration_s:
        return 0.0
    return max(1e-6, (since_us + spec.max_duration_s * S - now_us) / (3600 * S))
