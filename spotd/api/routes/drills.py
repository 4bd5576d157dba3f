"""Routes about fault drills: terms, orders, and results."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

from spotd.act.drill_runner import DRILLED, figures, outcome_text
from spotd.api.request.context import ApiContext
from spotd.api.request.request import (
    ApiError,
    ApiRequest,
    Check,
    bad_input,
    conflict,
    not_found,
    unknown_job,
)
from spotd.api.routes.budgets import check_budgets
from spotd.api.views.resources import iso
from spotd.domain.events import Event
from spotd.domain.fault_drill import SAYS, WITHIN_S, DrillKind, FaultDrill
from spotd.domain.job import Job
from spotd.history.overdue_drills import overdue
from spotd.money.units import usd
from spotd.planner.rules.drill_admission import cost_microusd, target, why_not
from spotd.store.errors import StoreError
from spotd.store.interface import Store

_ID = re.compile(r"[0-9a-f]{32}")
_LEAST_S, _MOST_S = 10.0, 86_400.0


def list_drills(call: ApiRequest) -> dict[str, Any]:
    """List the drills of a job (`job=`) or of all jobs, newest first."""
    store, name = call.context.store, call.query.get("job", "")
    job = None
    if name and (job := store.jobs.find(name)) is None:
        raise not_found(unknown_job(store, name), "spotctl ps --all")
    drills = store.drills.rows(job.id if job else "")
    names = store.jobs.names({drill.job_id for drill in drills})
    items = [
        {**drill_data(drill), "job": names.get(drill.job_id, "")} for drill in reversed(drills)
    ]
    return {"kind": "DrillList", "items": items}


def drill_terms(call: ApiRequest) -> dict[str, Any]:
    """Describe a drill of that `kind` and its possible cost; refused where it would do harm."""
    job, kind = call.job(), _kind(call.query.get("kind", ""))
    within_s = _within(call.query.get("within_s", ""))
    return {"kind": "DrillTerms", "job": job.name, **_terms(call, job, kind, within_s)}


def order_drill(call: ApiRequest) -> dict[str, Any]:
    """Record a drill, which the daemon then runs. Repeating an `id` does not start a second one."""
    job, kind = call.job(), _kind(call.text("kind"))
    given_within = call.body.get("within_s")
    within_s = _within("" if given_within is None else str(given_within))
    drill_id = call.text("id") or call.context.ids.token()
    if not _ID.fullmatch(drill_id):
        raise bad_input("id is 32 hexadecimal digits", "leave it out, or use spotctl drill run")
    store = call.context.store
    existing = [drill for drill in store.drills.rows() if drill.id == drill_id]
    if existing and existing[0].job_id != job.id:
        raise conflict(f"the drill {drill_id} belongs to another job", "leave the id out")
    if not existing:
        _refuse_second(store, job, drill_id)
        _terms(call, job, kind, within_s)
        drill = FaultDrill(drill_id, job.id, kind, call.actor, call.now_us, within_s)
        existing = [store.drills.add(drill)]
        _refuse_second(store, job, drill_id)
        message = f"{call.actor or 'a user'} requested a drill ({kind.value})"
        store.events.add(job.id, Event(DRILLED, message, data={"drill": drill_id}), call.now_us)
    return {
        "kind": "Drill",
        "job": job.name,
        "drill": existing[0].kind.value,
        **drill_data(existing[0]),
    }


def _refuse_second(store: Store, job: Job, drill_id: str) -> None:
    for drill in store.drills.rows(job.id, unfinished=True):
        if drill.id != drill_id:
            description = f"{drill.kind.value}, by {drill.actor or 'somebody'}"
            message = f"a drill of {job.name} is already running ({description})"
            raise conflict(message, f"spotctl drill ls --job {job.name}")


def _terms(call: ApiRequest, job: Job, kind: DrillKind, within_s: float) -> dict[str, Any]:
    """Return the terms of a drill. Raises ApiError (refused) where the drill would do harm."""
    store, now_us = call.context.store, call.now_us
    view, market = store.load_view(job.id, now_us), call.context.market(now_us)
    if view is None:
        raise ApiError(404, "not_found", f"job {job.name} is gone", "spotctl ps --all")
    obstacle = call.context.daemon.safe_mode() or call.context.daemon.contested()
    obstacle = obstacle or why_not(view, market, kind, within_s, now_us)
    if obstacle:
        raise ApiError(
            409,
            "refused",
            f"cannot start a drill of {job.name}: {obstacle}",
            f"spotctl why {job.name}",
        )
    if kind is not DrillKind.AGENT:
        check_budgets(call, store.jobs.users([job.id]).get(job.id, ""), job.spec, job)
    node = target(view)
    return {
        "what": SAYS[kind],
        "node": node.id if node else "",
        "step": node.training.last_step if node else 0,
        "within_s": within_s,
        "most_usd": usd(cost_microusd(view, market, kind, within_s, now_us)),
    }


def _kind(text: str) -> DrillKind:
    try:
        return DrillKind(text)
    except ValueError:
        known = ", ".join(kind.value for kind in DrillKind)
        raise bad_input(f"kind: {text!r} is not a kind of drill", f"one of {known}") from None


def _within(text: str) -> float:
    try:
        within_s = float(text) if text else WITHIN_S
    except ValueError:
        within_s = 0.0
    if not _LEAST_S <= within_s <= _MOST_S:
        fix = f"from {_LEAST_S:.0f} to {_MOST_S:.0f} seconds"
        raise bad_input(f"within_s: {text!r} is not a valid time limit for a recovery", fix)
    return within_s


def newest_drill(store: Store, job: Job) -> dict[str, Any] | None:
    """Return the last drill of the job, running or ended."""
    drills = store.drills.rows(job.id)
    return drill_data(drills[-1]) if drills else None


def drill_data(drill: FaultDrill) -> dict[str, Any]:
    """Return a drill as JSON; unknown values are null."""
    findings = asdict(drill.found)
    cost = findings.pop("cost_microusd")
    ended = drill.end is not None
    return {
        "id": drill.id,
        "job_id": drill.job_id,
        "drill": drill.kind.value,
        "actor": drill.actor,
        "state": drill.end.value if drill.end else "struck" if drill.struck_at_us else "asked",
        "asked_at": iso(drill.asked_at_us),
        "struck_at": iso(drill.struck_at_us),
        "ended_at": iso(drill.ended_at_us),
        "node": drill.node_id,
        "within_s": drill.within_s,
        "text": outcome_text(drill) if ended else "",
        "failed": drill.text,
        "figures": figures(drill) if ended and drill.struck_at_us else "",
        **findings,
        "cost_usd": usd(cost),
    }


def check_drills(context: ApiContext, now_us: int) -> list[Check]:
    """Return a doubtful check where jobs have had no drill for too long.

    Empty where the database is away, which its own check reports.
    """
    days = context.settings.drill_days()
    if not days:
        return []
    try:
        overdue_jobs = overdue(context.store.jobs.rows(), context.store.drills.rows(), days, now_us)
    except StoreError:
        return []
    if not overdue_jobs:
        return [Check("drills", True, f"no job is overdue ({days:.0f} days)")]
    message = "; ".join(job.text for job in overdue_jobs[:3])
    others = f"; and {len(overdue_jobs) - 3} more" if len(overdue_jobs) > 3 else ""
    fix = f"spotctl drill run {overdue_jobs[0].job.name} --kind sigterm"
    return [Check("drills", True, message + others, fix, doubtful=True)]
