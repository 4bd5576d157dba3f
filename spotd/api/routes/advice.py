"""Advice for a job file: spot or on demand today, by the conditions that guides name, each with
what was measured of it, and the phases of a project with what each costs. Starts nothing."""

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
from spotd.api.views.resources import recoveries
from spotd.api.views.spot_value import Comparison, weigh, worth_data
from spotd.base.live_reports import RECOVERY_KIND
from spotd.domain.job import JobSpec
from spotd.domain.phase import keeps
from spotd.domain.units import S
from spotd.history.advice import (
    PROMISED,
    REFUSED,
    TOLERATED,
    Dollars,
    Phase,
    PhaseRequest,
    advised,
    lost_share,
    on_spot,
    phases,
    to_be_had,
    together,
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

FITS = 0.8  # of a notice: a last save that is expected to take longer is not counted on
Place = tuple[str, str, str]  # provider, region, type
_MOST_S = 10 * 365 * 86_400
_MOST_PARAMETERS = 10**15


@dataclass(frozen=True)
class AdviceRequest:
    """What conditions are judged by. `hours` of the job's work, 0.0 where not known."""

    call: ApiRequest
    spec: JobSpec
    plan: Mapping[str, Any]
    weighed: Comparison | None
    hours: float


def advise(call: ApiRequest) -> dict[str, Any]:
    """Conditions, verdict and phases for a job file; `search_s`, `train_s` and `validate_s` say how
    long phases are, `parameters` how large the model is where the file does not."""
    spec, market, plan = planned(call)
    weighed = weigh(call, spec, market)
    hours = _hours(call, spec)
    asked = AdviceRequest(call, spec, plan, weighed, hours[PhaseRequest.TRAIN])
    conditions = [judge(asked) for judge in CONDITIONS]
    deciding = [one["holds"] for one in conditions if one["decides"]]
    pays = next(one["holds"] for one in conditions if one["name"] == "discount")
    model = plan.get("model") or {}
    given = call.number("parameters", 0, 0, _MOST_PARAMETERS)
    parameters = float(given or model.get("parameters") or 0)
    return {
        "kind": "Advice",
        "job": spec.name,
        "verdict": advised(deciding, pays=pays).value,
        "conditions": conditions,
        "worth": worth_data(weighed, plan),
        "parameters": parameters or None,
        **_phases(weighed, parameters, hours),
        "warnings": plan["warnings"],
    }


def _hours(call: ApiRequest, spec: JobSpec) -> dict[PhaseRequest, float]:
    """Of each phase, in hours; 0.0 where not known."""
    seconds = {
        PhaseRequest.SEARCH: call.number("search_s", 0, 0, _MOST_S),
        PhaseRequest.TRAIN: call.number("train_s", 0, 0, _MOST_S),
        PhaseRequest.VALIDATE: call.number("validate_s", 0, 0, _MOST_S),
    }
    wishes = spec.wishes
    told_s = wishes.work_s or wishes.work_steps * wishes.step_s
    return {
        part: (s or (told_s if part is PhaseRequest.TRAIN else 0)) / 3600
        for part, s in seconds.items()
    }


# --- conditions


def _condition(
    name: str, holds: bool | None, measured: Mapping[str, Any], *, decides: bool = True
) -> dict[str, Any]:
    return {"name": name, "holds": holds, "decides": decides, "measured": dict(measured)}


def _checkpoints(asked: AdviceRequest) -> dict[str, Any]:
    """Training is kept in checkpoints."""
    saves = asked.spec.checkpoint
    before = asked.call.backing.store.find_job(asked.spec.name)
    rows = asked.call.backing.store.checkpoints(before.id) if before else []
    measured = {"engine": saves.engine, "directory": saves.directory, "on_record": len(rows)}
    return _condition("checkpoints", keeps(saves), measured)


def _tolerance(asked: AdviceRequest) -> dict[str, Any]:
    """Interruptions take no more of the time than a workload is thought to bear."""
    found = asked.weighed
    if found is None or found.habits.again_h is None:
        return _condition("tolerance", None, {"most": TOLERATED})
    hazard, habits = found.hazard, found.habits
    rates = (hazard.middle, hazard.low, hazard.high)
    share, low, high = (lost_share(rate, habits) for rate in rates)
    measured = {
        "lost_share": share,
        "low": low,
        "high": high,
        "most": TOLERATED,
        "mtbf_s": 3600 / (hazard.middle * habits.num_nodes),
        "pause_s": 2 * found.habits.again_h * 3600,
        "restart_s": habits.restart_h * 3600,
    }
    return _condition("tolerance", share <= TOLERATED, measured)


def _recovery(asked: AdviceRequest) -> dict[str, Any]:
    """A resume was seen: of the last job of that name, or by a live report of that cloud."""
    call, found = asked.call, asked.weighed
    before = call.backing.store.find_job(asked.spec.name)
    resumed = recoveries(call.backing.store.job_nodes(before.id)) if before else 0
    cloud = found.spot.cloud if found else ""
    shown = [one for one in call.backing.live_reports() if one.kind == RECOVERY_KIND]
    proof = next((one for one in reversed(shown) if one.cloud == cloud), None)
    report = {"cloud": cloud, "day": f"{proof.at:%Y-%m-%d}", "ok": proof.ok} if proof else None
    holds = True if resumed or (proof and proof.ok) else False if proof else None
    return _condition("recovery", holds, {"resumed": resumed, "report": report})


def _discount(asked: AdviceRequest) -> dict[str, Any]:
    """The discount pays for the interruptions."""
    worth = asked.weighed.worth(asked.hours) if asked.weighed else None
    if worth is None:
        return _condition("discount", None, {})
    measured = {
        "verdict": worth.verdict.value,
        "spot_usd": _known(worth.spot.usd),
        "high_usd": _known(worth.high_usd),
        "on_demand_usd": _known(worth.on_demand.usd),
        "discount": worth.discount,
        "saving": _known(worth.saving),
    }
    return _condition("discount", worth.verdict is not SpotDecision.NO, measured)


def _length(asked: AdviceRequest) -> dict[str, Any]:
    """It is long enough that a discount is worth an interruption."""
    holds = asked.hours >= SHORT_H if asked.hours else None
    return _condition("length", holds, {"hours": asked.hours or None, "least": SHORT_H})


def _deadline(asked: AdviceRequest) -> dict[str, Any]:
    """There is time for spot before the deadline needs on-demand, as the policy's guard reckons."""
    if not asked.spec.deadline_us:
        return _condition("deadline", True, {"at": None})
    told = asked.plan["placement"].get("deadline")
    if told is None:
        return _condition("deadline", None, {"at": "not steered"})
    late = bool(told["late_s"]) or told["guarded"]
    spare = told["spare_s"]
    holds = False if late else None if spare is None else spare >= 0
    return _condition("deadline", holds, told)


def _at_once(asked: AdviceRequest) -> dict[str, Any]:
    """Spot is to be had: it is offered, and of what was asked for within 30 days in the cheapest
    pool, or in another that fits, no more was refused than may be."""
    found = asked.weighed
    if found is None:
        return _condition("at_once", None, {})
    pools = _pools(asked.call, found.spots)
    here = pools.pop(_place(found.spot.key))
    refused, holds = here.refusals, to_be_had(here.refusals)
    elsewhere = sum(to_be_had(row.refusals) is True for row in pools.values())
    measured = {
        "offers": len(found.spots),
        "refused": sum(here.refused.values()),
        "answered": int(refused.exposure) if refused else 0,
        "refused_low": refused.low if refused else None,
        "refused_high": refused.high if refused else None,
        "most": REFUSED,
        "elsewhere": elsewhere,
        "hello_median_s": quantile(here.hellos_s, 0.5),
    }
    return _condition("at_once", True if elsewhere else holds, measured)


def _pools(call: ApiRequest, offers: Iterable[Offer]) -> dict[Place, Row]:
    """What became of requests on spot, by provider, region and type, whatever the zone."""
    since_us = call.now_us - int(WITHIN_S * S)
    lives = call.backing.store.machine_lives(since_us)
    rows = count(lives, GroupBy.POOL, CapacityType.SPOT.value, since_us, call.now_us)
    wanted = {_place(offer.key) for offer in offers}
    return {place: total([row for row in rows if _place(row.name) == place]) for place in wanted}


def _place(key: str) -> Place:
    provider, region, _zone, kind, *_ = key.split("/")
    return provider, region, kind


def _last_save(asked: AdviceRequest) -> dict[str, Any]:
    """A save that begins with the notice is done before the machine ends; where it is not, what
    interruptions cost is what was reckoned anyway, for that counts on no notice."""
    call, found = asked.call, asked.weighed
    before = call.backing.store.find_job(asked.spec.name)
    rows = call.backing.store.checkpoints(before.id) if before else []
    took = [row.stage_s + row.write_s for row in rows if row.write_s > 0]
    save_s = statistics.median(took) if len(took) >= STARTS else None
    cloud = found.spot.cloud if found else ""
    notice = notice_data(cloud, notices_by_cloud(call).get(cloud, ()))
    planned_s = notice["planned"]
    known = save_s is not None and planned_s is not None
    holds = save_s <= FITS * planned_s if known else None
    measured = {"save_s": save_s, "saves": len(took), "part": FITS, "cloud": cloud}
    return _condition("last_save", holds, {**measured, "notice_s": notice}, decides=False)


def _batch(asked: AdviceRequest) -> dict[str, Any]:
    """Nobody waits for its answers."""
    block = parse(asked.call.text("yaml")).data.get("spotd")
    kind = (block.get("kind") if isinstance(block, dict) else None) or "training"
    return _condition("batch", kind == "training", {"kind": kind})


CONDITIONS: tuple[Callable[[AdviceRequest], dict[str, Any]], ...] = (
    _checkpoints,
    _tolerance,
    _recovery,
    _discount,
    _length,
    _deadline,
    _at_once,
    _batch,
    _last_save,
)


# --- phases


def _phases(
    weighed: Comparison | None, parameters: float, hours: Mapping[PhaseRequest, float]
) -> dict[str, Any]:
    """`mode` is null where it is not known how large the model is, `total` where nothing can be
    priced; a phase without hours has what guides have in its place."""
    train_h = hours[PhaseRequest.TRAIN]
    short = 0 < train_h < SHORT_H
    mode = mode_of(parameters, train_h) if parameters or short else None

    def priced(by: Mode) -> list[Phase]:
        return phases(by, hours, weighed.worth) if weighed else []

    if mode is None:
        return {"mode": None, "phases": [], "total": None, "modes": _modes(priced)}
    found = {one.part: one for one in priced(mode)}
    usual = usual_hours(train_h) if train_h else {}
    rows = [
        _phase(found[part]) if part in found else _unpriced(mode, part, hours, usual)
        for part in PhaseRequest
    ]
    return {
        "mode": {"name": mode.name, "text": mode.text, "promised": PROMISED.get(mode.name)},
        "phases": rows,
        "total": _dollars(together(found.values())) if found else None,
        "modes": _modes(priced),
    }


def _modes(priced: Callable[[Mode], list[Phase]]) -> list[dict[str, Any]]:
    """The same phases at each size of a model."""
    found = []
    for mode in (SPOT, HYBRID, SEARCH):
        rows = priced(mode)
        parts = [part.value for part in PhaseRequest if on_spot(mode, part)]
        told = {"name": mode.name, "on_spot": parts, "promised": PROMISED[mode.name]}
        found.append({**told, "total": _dollars(together(rows)) if rows else None})
    return found


def _phase(one: Phase) -> dict[str, Any]:
    return {
        "phase": one.part.value,
        "capacity": (CapacityType.SPOT if one.spot else CapacityType.ON_DEMAND).value,
        "why": one.why,
        "hours": one.hours,
        "takes_hours": _known(one.takes_h),
        "usual_hours": None,
        **_dollars(one.dollars),
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
        "usd": _known(of.usd),
        "on_demand_usd": _known(of.on_demand_usd),
        "saved_usd": _known(of.saved_usd),
        "saving": _known(of.saving),
        "discount": of.discount,
    }


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
