"""Budgets in the API: their status, and the jobs that they refuse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spotd.api.request.request import ApiError, ApiRequest, conflict
from spotd.api.views.resources import iso
from spotd.domain.events import Event, Severity
from spotd.domain.job import Desired, Job, JobSpec
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.money.approval import REFUSE, SECOND_PERSON
from spotd.money.budget import Budget, BudgetStatus, Plan, Spending, budget_status, refusal
from spotd.money.focus import month_of
from spotd.money.units import usd
from spotd.planner.core.shard_stores import carried_microusd_per_h
from spotd.planner.placement.rank import rank
from spotd.store.budget_queries import OVERRIDE, carried, carried_by, override_key, spendings
from spotd.store.dataset_costs import paid_by_copy


def list_budgets(call: ApiRequest) -> dict[str, Any]:
    """List the budgets of the configuration: this month's spending, the burn rate, the forecast."""
    now_us = call.now_us
    store, month = call.context.store, month_of(now_us)
    rows, extra = spendings(store, now_us), carried(store, month[0])
    statuses = [
        budget_status(budget, rows, month, now_us, extra)
        for budget in call.context.settings.budgets()
    ]
    return {"kind": "BudgetList", "items": [_data(status) for status in statuses]}


def _data(status: BudgetStatus) -> dict[str, Any]:
    forecast = status.forecast
    return {
        "name": status.budget.name,
        "user": status.budget.user,
        "project": status.budget.project,
        "state": status.state,
        "since": iso(status.since_us),
        "until": iso(status.until_us),
        "budget_usd": usd(status.budget.microusd),
        "spent_usd": usd(status.spent_microusd),
        "usd_per_hour": usd(status.microusd_per_h),
        "mean_usd_per_hour": usd(status.mean_microusd_per_h),
        "forecast_usd": usd(round(forecast.middle)),
        "forecast_low_usd": usd(round(forecast.low)),
        "forecast_high_usd": usd(round(forecast.high)),
        "used_up_at": iso(status.reached_at_us),
    }


def check_budgets(call: ApiRequest, user: str, spec: JobSpec, resumed: Job | None = None) -> str:
    """Refuse to start or resume a job that may cost more than a budget has left.

    With `override_budget` in the body it is allowed. Returns the text of the overridden refusal, or
    "". Raises ApiError (refused, auth).
    """
    budgets = [
        budget
        for budget in call.context.settings.budgets()
        if budget.covers(user, spec.queue.project)
    ]
    if not budgets:
        return ""
    store, now_us = call.context.store, call.now_us
    rows, owners, carried_costs = spendings(store, now_us), store.jobs.owners(), carried_by(store)
    running = [
        _plan_of(call, job, owners.get(job.id, ""), rows, carried_costs)
        for job in store.jobs.rows(finished=False)
        if job.desired is Desired.RUN and (resumed is None or job.id != resumed.id)
    ]
    new = (
        _plan_of(call, resumed, user, rows, carried_costs)
        if resumed
        else _new_plan(call, user, spec, now_us)
    )
    message = _refused(call, budgets, rows, running, new, spec.name)
    if message and call.body.get("override_budget") is not True:
        fix = "wait for next month, raise it in config.toml, or --override-budget"
        raise ApiError(409, "refused", message, fix)
    if message and needs_second_person(call) and not call.actor:
        text = "the user who asks to exceed a budget is unknown, so no second person can approve it"
        raise ApiError(403, "auth", text, "run the command as a user of this machine")
    return message


def check_project(call: ApiRequest, spec: JobSpec) -> list[str]:
    """Refuse a job whose project is not approved, or return a warning, as the policy says.

    Raises ApiError (refused).
    """
    approval = call.context.settings.approval()
    message = approval.lacks(spec.queue.project)
    if message and approval.policy == REFUSE:
        raise ApiError(409, "refused", message, approval.fix(spec.queue.project))
    policy = 'with unapproved_projects = "refuse" in [policies] the job would be refused'
    return [f"{message}: {policy}; {approval.fix(spec.queue.project)}"] if message else []


def needs_second_person(call: ApiRequest) -> bool:
    """Return whether another admin has to approve that a job exceeds a budget."""
    return call.context.settings.overrides() == SECOND_PERSON


def record_request(call: ApiRequest, job: Job) -> list[str]:
    """Alert the admins that a job waits for one of them, and return that as a warning."""
    command = f"spotctl budget approve {job.name}"
    asked_by, budget = job.approval.approval_asked_by, job.approval.approval_text
    text = f"{asked_by} asks to let {job.name} exceed a budget: {budget}"
    event = Event(
        "budget_approval",
        f"{text}; another admin approves with `{command}`",
        severity=Severity.WARNING,
        alert=True,
        key=f"budget_approval:{job.id}:{call.now_us}",
    )
    call.context.store.events.add(job.id, event, call.now_us)
    return [f"{job.name} waits until another admin approves: {command}; {budget}"]


def approve_override(call: ApiRequest) -> dict[str, Any]:
    """Approve another admin's request to let a job exceed a budget, and run it."""
    job, store = call.job(), call.context.store
    asked_by = job.approval.approval_asked_by
    if not asked_by or job.outcome is not None or job.desired is not Desired.PAUSE:
        raise conflict(f"{job.name} waits for no approval", f"spotctl show {job.name}")
    if asked_by == call.actor:
        message = f"{call.actor} asked to let {job.name} exceed a budget, and cannot approve it"
        raise ApiError(403, "auth", message, "another admin has to run the same command")
    token = store.logins.token(call.token_id) if call.token_id else None
    if call.token_id and (token is None or token.made_by == asked_by):
        maker = asked_by if token else "somebody unknown"
        message = f"{call.actor} is logged in with a token of {maker}, and {asked_by} asked"
        raise ApiError(403, "auth", message, "another admin has to run the same command")
    record_override(call, job, f"{asked_by} asked for it; {job.approval.approval_text}")
    store.jobs.set_desired(job.id, Desired.RUN, call.now_us)
    return {
        "kind": "BudgetApproval",
        "job": job.name,
        "id": job.id,
        "asked_by": asked_by,
        "approved_by": call.actor,
        "override": job.approval.approval_text,
    }


def record_override(call: ApiRequest, job: Job, text: str) -> None:
    """Record that no budget stops the job until the month ends."""
    if text:
        event_text = f"{call.actor or 'somebody'} lets {job.name} exceed a budget: {text}"
        key = override_key(job.id)
        # Somebody's own decision: the audit and the events have it, and nobody is alerted.
        event = Event(OVERRIDE, event_text, severity=Severity.WARNING, key=key)
        call.context.store.events.add(job.id, event, call.now_us)


def _refused(
    call: ApiRequest,
    budgets: list[Budget],
    rows: list[Spending],
    running: list[Plan],
    new: Plan,
    name: str,
) -> str:
    month, now_us = month_of(call.now_us), call.now_us
    carried_costs = carried(call.context.store, month[0])
    refusals = (
        refusal(budget_status(budget, rows, month, now_us, carried_costs), running, new, name)
        for budget in budgets
    )
    return next((text for text in refusals if text), "")


def _new_plan(call: ApiRequest, user: str, spec: JobSpec, now_us: int) -> Plan:
    """Return the plan of a new job, at the price of the machine that it would get now.

    Includes the cost of its checkpoints there as far as it is known.
    """
    market = call.context.market(now_us)
    ranked = [row for row in rank(spec, market, now_us) if not row.excluded]
    rate = 0
    if ranked:
        offer = ranked[0].offer
        rate = offer.price_microusd_per_h * spec.resources.num_nodes
        rate += carried_microusd_per_h(offer, spec, market)
    hours = _hours_left(spec, now_us, now_us)
    prefetch_microusd = spec.preferences.ahead.max_microusd
    return Plan(
        user, rate, spec.limits.max_cost_microusd, hours, spec.queue.project, prefetch_microusd
    )


def _plan_of(
    call: ApiRequest,
    job: Job,
    user: str,
    rows: list[Spending],
    carried_costs: Mapping[str, tuple[int, int]],
) -> Plan:
    """Return the plan of an existing job, at the price of its machines, or of those it would get.

    Includes the recent cost of its checkpoints. `carriage` is by job id: (cost so far, per hour) in
    micro-USD.
    """
    spec, now_us = job.spec, call.now_us
    stretches = [row.stretch for row in rows if row.job_id == job.id]
    nodes = call.context.store.nodes.of_job(job.id)
    active_nodes = [node for node in nodes if node.state is not NodeState.GONE]
    carried_cost, carried_per_h = carried_costs.get(job.id, (0, 0))
    rate = sum(node.offer.price_microusd_per_h for node in active_nodes)
    rate = rate + carried_per_h if rate else _new_plan(call, user, spec, now_us).microusd_per_h
    left = 0
    if spec.limits.max_cost_microusd:
        spent = sum(stretch.spent(0, now_us) for stretch in stretches) + carried_cost
        left = max(1, spec.limits.max_cost_microusd - spent)
    started_us = job.created_at_us
    if spec.queue.after:  # its time starts when the job before it ends
        started_us = min((node.requested_at_us for node in nodes), default=now_us)
    hours = _hours_left(spec, started_us, now_us)
    prefetch_microusd = spec.preferences.ahead.max_microusd
    if prefetch_microusd:
        sent = call.context.store.transfers.rows(job.id)
        prefetch_microusd = max(
            0, prefetch_microusd - sum(paid_by_copy(sent, call.context.market(now_us)).values())
        )
    return Plan(user, rate, left, hours, spec.queue.project, prefetch_microusd)


def _hours_left(spec: JobSpec, since_us: int, now_us: int) -> float:
    """Return the hours left by `max_duration`; 0 where there is none. (A deadline ends no job.)"""
    if not spec.limits.max_duration_s:
        return 0.0
    return max(1e-6, (since_us + spec.limits.max_duration_s * S - now_us) / (3600 * S))
