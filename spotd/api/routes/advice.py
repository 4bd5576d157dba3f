"""Advice for a job file: spot or on-demand today, by the conditions that guides name.

Each condition comes with its measured value. The reply also has the phases of a project with the
cost of each. Starts nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from providers.base import CapacityType, Offer
from spotd.api.request.request import ApiRequest
from spotd.api.routes.explain import planned
from spotd.api.routes.notice_times import notice_data, notices_by_cloud
from spotd.api.views.lost_work import count_recoveries, losses
from spotd.api.views.spot_value import Comparison, compare_spot, spot_value_data
from spotd.base.live_reports import RECOVERY_KIND
from spotd.domain.job import Job, JobSpec
from spotd.domain.phase import keeps
from spotd.domain.units import S
from spotd.history.advice import (
    PROMISED,
    REFUSED,
    TOLERATED,
    Dollars,
    Phase,
    PhaseRequest,
    is_available,
    lost_share,
    on_spot,
    phases,
    recommend,
    total_dollars,
    usual_hours,
)
from spotd.history.interruption_stats import GroupBy, Row, count, total
from spotd.history.intervals import quantile
from spotd.history.spot_value import (
    HYBRID,
    SEARCH,
    SHORT,
    SHORT_H,
    SPOT,
    STARTS,
    Mode,
    SpotDecision,
    mode_of,
)
from spotd.planner.core.checkpoint_interval import WITHIN_S
from spotd.spec.document import parse

FITS = 0.8  # share of a notice; a last save that is expected to take longer is not relied on
Place = tuple[str, str, str]  # provider, region, type
_MOST_S = 10 * 365 * 86_400
_MOST_PARAMETERS = 10**15


@dataclass(frozen=True)
class AdviceRequest:
    """The inputs of the conditions. `hours` is the job's work in hours, 0.0 where not known."""

    call: ApiRequest
    spec: JobSpec
    plan: Mapping[str, Any]
    comparison: Comparison | None
    hours: float


def advise(call: ApiRequest) -> dict[str, Any]:
    """Conditions, verdict and phases for a job file; `search_s`, `train_s` and `validate_s` say how
    long phases are, `parameters` how large the model is where the file does not."""
    spec, market, plan = planned(call)
    comparison = compare_spot(call, spec, market)
    hours = _hours(call, spec)
    request = AdviceRequest(call, spec, plan, comparison, hours[PhaseRequest.TRAIN])
    conditions = [judge(request) for judge in CONDITIONS]
    deciding = [condition["holds"] for condition in conditions if condition["decides"]]
    pays = next(item["holds"] for item in conditions if item["name"] == "discount")
    model = plan.get("model") or {}
    given_parameters = call.number("parameters", 0, 0, _MOST_PARAMETERS)
    parameters = float(given_parameters or model.get("parameters") or 0)
    return {
        "kind": "Advice",
        "job": spec.name,
        "verdict": recommend(deciding, pays=pays).value,
        "conditions": conditions,
        "worth": spot_value_data(comparison, plan),
        "parameters": parameters or None,
        "memory": _memory(plan),
        **_phases(comparison, parameters, hours),
        "warnings": plan["warnings"],
    }


def _memory(plan: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the plan's verdict on the memory of its first offer with a known size, or None."""
    sized = (row for row in plan["offers"] if row.get("size"))
    row = next(sized, None)
    if row is None:
        return None
    names = ("gpus", "accelerator", "verdict", "by_default", "text", "note", "options")
    return {"offer": row["key"], **{name: row["size"][name] for name in names}}


def _hours(call: ApiRequest, spec: JobSpec) -> dict[PhaseRequest, float]:
    """Return the hours of each phase; 0.0 where not known."""
    seconds = {
        PhaseRequest.SEARCH: call.number("search_s", 0, 0, _MOST_S),
        PhaseRequest.TRAIN: call.number("train_s", 0, 0, _MOST_S),
        PhaseRequest.VALIDATE: call.number("validate_s", 0, 0, _MOST_S),
    }
    preferences = spec.preferences
    work_s = preferences.work_s or preferences.work_steps * preferences.step_s
    return {
        part: (s or (work_s if part is PhaseRequest.TRAIN else 0)) / 3600
        for part, s in seconds.items()
    }


# --- conditions


def _condition(
    name: str, holds: bool | None, measured: Mapping[str, Any], *, decides: bool = True
) -> dict[str, Any]:
    return {"name": name, "holds": holds, "decides": decides, "measured": dict(measured)}


def _checkpoints(request: AdviceRequest) -> dict[str, Any]:
    """Check that training is saved in checkpoints."""
    saves = request.spec.checkpoint
    before = request.call.context.store.jobs.find(request.spec.name)
    rows = request.call.context.store.checkpoints.rows(before.id) if before else []
    measured = {"engine": saves.engine, "directory": saves.directory, "on_record": len(rows)}
    return _condition("checkpoints", keeps(saves), measured)


def _tolerance(request: AdviceRequest) -> dict[str, Any]:
    """Check that interruptions take no more than the tolerable share of the time."""
    comparison = request.comparison
    if comparison is None or comparison.interruption_cost.again_h is None:
        return _condition("tolerance", None, {"most": TOLERATED})
    hazard, habits = comparison.hazard, comparison.interruption_cost
    rates = (hazard.middle, hazard.low, hazard.high)
    share, low, high = (lost_share(rate, habits) for rate in rates)
    measured = {
        "lost_share": share,
        "low": low,
        "high": high,
        "most": TOLERATED,
        "mtbf_s": 3600 / (hazard.middle * habits.num_nodes),
        "pause_s": 2 * comparison.interruption_cost.again_h * 3600,
        "restart_s": habits.restart_h * 3600,
    }
    return _condition("tolerance", share <= TOLERATED, measured)


def _recovery(request: AdviceRequest) -> dict[str, Any]:
    """Check that a resume worked, in the last job of that name or a live report of that cloud."""
    call, comparison = request.call, request.comparison
    before = call.context.store.jobs.find(request.spec.name)
    resumed = _times_resumed(call, before) if before else 0
    cloud = comparison.spot.cloud if comparison else ""
    reports = [
        report_data
        for report_data in call.context.clouds.live_reports()
        if report_data.kind == RECOVERY_KIND
    ]
    proof = next(
        (report_data for report_data in reversed(reports) if report_data.cloud == cloud), None
    )
    report_data = {"cloud": cloud, "day": f"{proof.at:%Y-%m-%d}", "ok": proof.ok} if proof else None
    holds = True if resumed or (proof and proof.ok) else False if proof else None
    return _condition("recovery", holds, {"resumed": resumed, "report": report_data})


def _times_resumed(call: ApiRequest, job: Job) -> int:
    nodes = call.context.store.nodes.of_job(job.id)
    lost = losses(job, nodes, call.context.store.checkpoints.rows(job.id))
    return count_recoveries(nodes, lost).resumed


def _discount(request: AdviceRequest) -> dict[str, Any]:
    """Check that the discount pays for the interruptions."""
    value = request.comparison.evaluate(request.hours) if request.comparison else None
    if value is None:
        return _condition("discount", None, {})
    measured = {
        "verdict": value.verdict.value,
        "spot_usd": _finite_or_none(value.spot.usd),
        "high_usd": _finite_or_none(value.high_usd),
        "on_demand_usd": _finite_or_none(value.on_demand.usd),
        "discount": value.discount,
        "saving": _finite_or_none(value.saving),
    }
    return _condition("discount", value.verdict is not SpotDecision.NO, measured)


def _length(request: AdviceRequest) -> dict[str, Any]:
    """Check that the job is long enough for the discount to outweigh an interruption."""
    holds = request.hours >= SHORT_H if request.hours else None
    return _condition("length", holds, {"hours": request.hours or None, "least": SHORT_H})


def _deadline(request: AdviceRequest) -> dict[str, Any]:
    """Check that there is time for spot before the deadline needs on-demand.

    By the deadline slack that the spot policy computes.
    """
    if not request.spec.limits.deadline_us:
        return _condition("deadline", True, {"at": None})
    deadline = request.plan["placement"].get("deadline")
    if deadline is None:
        return _condition("deadline", None, {"at": "not steered"})
    is_late = bool(deadline["late_s"]) or deadline["guarded"]
    spare_s = deadline["spare_s"]
    holds = False if is_late else None if spare_s is None else spare_s >= 0
    return _condition("deadline", holds, deadline)


def _availability(request: AdviceRequest) -> dict[str, Any]:
    """Check that spot is available now.

    It is when it is offered, and when the share of refused requests within 30 days is small enough
    in the cheapest pool, or in another pool that fits.
    """
    comparison = request.comparison
    if comparison is None:
        return _condition("at_once", None, {})
    pools = _pools(request.call, comparison.spots)
    cheapest = pools.pop(_place(comparison.spot.key))
    refusal_rate, holds = cheapest.refusals, is_available(cheapest.refusals)
    other_pools = sum(is_available(row.refusals) is True for row in pools.values())
    measured = {
        "offers": len(comparison.spots),
        "refused": sum(cheapest.refused.values()),
        "answered": int(refusal_rate.exposure) if refusal_rate else 0,
        "refused_low": refusal_rate.low if refusal_rate else None,
        "refused_high": refusal_rate.high if refusal_rate else None,
        "most": REFUSED,
        "elsewhere": other_pools,
        "hello_median_s": quantile(cheapest.hellos_s, 0.5),
    }
    return _condition("at_once", True if other_pools else holds, measured)


def _pools(call: ApiRequest, offers: Iterable[Offer]) -> dict[Place, Row]:
    """Return the outcomes of spot requests by provider, region and type, over all zones."""
    since_us = call.now_us - int(WITHIN_S * S)
    lives = call.context.store.node_history.machine_lives(since_us)
    rows = count(lives, GroupBy.POOL, CapacityType.SPOT.value, since_us, call.now_us)
    wanted = {_place(offer.key) for offer in offers}
    return {place: total([row for row in rows if _place(row.name) == place]) for place in wanted}


def _place(key: str) -> Place:
    provider, region, _zone, kind, *_ = key.split("/")
    return provider, region, kind


def _last_save(request: AdviceRequest) -> dict[str, Any]:
    """Check that a save started by a notice ends before the machine does.

    It does not decide: the cost of interruptions is computed without relying on notices.
    """
    call, comparison = request.call, request.comparison
    before = call.context.store.jobs.find(request.spec.name)
    rows = call.context.store.checkpoints.rows(before.id) if before else []
    durations_s = [row.stage_s + row.write_s for row in rows if row.write_s > 0]
    save_s = statistics.median(durations_s) if len(durations_s) >= STARTS else None
    cloud = comparison.spot.cloud if comparison else ""
    notice = notice_data(cloud, notices_by_cloud(call).get(cloud, ()))
    planned_s = notice["planned"]
    both_known = save_s is not None and planned_s is not None
    holds = save_s <= FITS * planned_s if both_known else None
    measured = {"save_s": save_s, "saves": len(durations_s), "part": FITS, "cloud": cloud}
    return _condition("last_save", holds, {**measured, "notice_s": notice}, decides=False)


def _batch(request: AdviceRequest) -> dict[str, Any]:
    """Check that it is training, so no user waits for its answers."""
    block = parse(request.call.text("yaml")).data.get("spotd")
    kind = (block.get("kind") if isinstance(block, dict) else None) or "training"
    return _condition("batch", kind == "training", {"kind": kind})


CONDITIONS: tuple[Callable[[AdviceRequest], dict[str, Any]], ...] = (
    _checkpoints,
    _tolerance,
    _recovery,
    _discount,
    _length,
    _deadline,
    _availability,
    _batch,
    _last_save,
)


# --- phases


def _phases(
    comparison: Comparison | None, parameters: float, hours: Mapping[PhaseRequest, float]
) -> dict[str, Any]:
    """Return the phases with their costs.

    `mode` is null where the size of the model is not known, and `total` where nothing can be
    priced. A phase without hours has the guides' usual hours in their place.
    """
    train_h = hours[PhaseRequest.TRAIN]
    is_short = 0 < train_h < SHORT_H
    mode = mode_of(parameters, train_h) if parameters or is_short else None

    def priced(by: Mode) -> list[Phase]:
        return phases(by, hours, comparison.evaluate) if comparison else []

    if mode is None:
        return {"mode": None, "phases": [], "total": None, "modes": _modes(priced)}
    by_part = {phase.part: phase for phase in priced(mode)}
    usual = usual_hours(train_h) if train_h else {}
    rows = [
        _phase(by_part[part]) if part in by_part else _unpriced(mode, part, hours, usual)
        for part in PhaseRequest
    ]
    return {
        "mode": {"name": mode.name, "text": mode.text, "promised": PROMISED.get(mode.name)},
        "phases": rows,
        "total": _dollars(total_dollars(by_part.values())) if by_part else None,
        "modes": _modes(priced),
    }


def _modes(priced: Callable[[Mode], list[Phase]]) -> list[dict[str, Any]]:
    """Return the total cost of the same phases for each size of a model."""
    modes = []
    for mode in (SPOT, HYBRID, SEARCH):
        rows = priced(mode)
        parts = [part.value for part in PhaseRequest if on_spot(mode, part)]
        fields = {"name": mode.name, "on_spot": parts, "promised": PROMISED[mode.name]}
        modes.append({**fields, "total": _dollars(total_dollars(rows)) if rows else None})
    return modes


def _phase(phase: Phase) -> dict[str, Any]:
    return {
        "phase": phase.part.value,
        "capacity": (CapacityType.SPOT if phase.spot else CapacityType.ON_DEMAND).value,
        "why": phase.why,
        "hours": phase.hours,
        "takes_hours": _finite_or_none(phase.takes_h),
        "usual_hours": None,
        **_dollars(phase.dollars),
    }


def _unpriced(
    mode: Mode,
    part: PhaseRequest,
    hours: Mapping[PhaseRequest, float],
    usual: Mapping[PhaseRequest, tuple[float, float]],
) -> dict[str, Any]:
    spot = on_spot(mode, part) and mode is not SHORT
    nothing = dict.fromkeys(("usd", "on_demand_usd", "saved_usd", "saving", "discount"))
    return {
        "phase": part.value,
        "capacity": (CapacityType.SPOT if spot else CapacityType.ON_DEMAND).value,
        "why": "",
        "hours": hours[part] or None,
        "takes_hours": None,
        "usual_hours": list(usual[part]) if part in usual else None,
        **nothing,
    }


def _dollars(of: Dollars) -> dict[str, Any]:
    return {
        "usd": _finite_or_none(of.usd),
        "on_demand_usd": _finite_or_none(of.on_demand_usd),
        "saved_usd": _finite_or_none(of.saved_usd),
        "saving": _finite_or_none(of.saving),
        "discount": of.discount,
    }


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
