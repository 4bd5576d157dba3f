"""Routes that explain why a job is where it is, and where a job file would run. Neither acts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spotd.api.request.request import ApiError, ApiRequest
from spotd.api.routes.drills import newest_drill
from spotd.api.routes.jobs import parse_job
from spotd.api.routes.rightsize import with_sizes
from spotd.api.views.baked_image import check_baked, image_of_offer
from spotd.api.views.bucket_costs import requests_usd_per_h, storage_data
from spotd.api.views.diagnosis import diagnoses, recent_use
from spotd.api.views.failures import headline, job_failure
from spotd.api.views.gang_network import refuse_slow
from spotd.api.views.lost_work import unsaved_work_warnings
from spotd.api.views.placement import excluded_by_residency, moves_data, placement_data
from spotd.api.views.prefetch import prefetch_data, prefetch_warnings
from spotd.api.views.resources import iso, offer_data
from spotd.api.views.spot_value import with_spot_value
from spotd.api.views.store_capacity import check_capacity, mount_warnings
from spotd.domain.fast_replace import changed
from spotd.domain.job import Desired, Job, JobSpec
from spotd.domain.market import Market
from spotd.domain.plan import Plan
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.money.units import usd
from spotd.planner.core.gangs import shrinks
from spotd.planner.placement.move_payback import moves
from spotd.planner.placement.rank import RankedOffer, rank
from spotd.planner.planner import decide
from spotd.planner.rules.spot_policy_rule import compared, of_spec
from spotd.spec import SpecError
from spotd.spec.document import parse
from spotd.store.commit_effects import launches
from spotd.store.limits import LimitRoom, LimitUse

CONSOLE_US = 24 * 3600 * S


def why(call: ApiRequest) -> dict[str, Any]:
    """Explain the job's next decision: compute it afresh, return its reasons, and discard it."""
    job = call.job()
    now_us = call.now_us
    view = call.context.store.load_view(job.id, now_us)
    if view is None:
        raise ApiError(404, "not_found", f"job {job.name} is gone", "spotctl ps --all")
    market = call.context.market(now_us)
    user = call.context.store.jobs.users([job.id]).get(job.id, "")
    plan = _decide(view, market, user, now_us)
    nodes = call.context.store.nodes.of_job(job.id)
    reasons = [*plan.reasons, *_save_failed(call, job), *_silent_clouds(call, view, market)]
    return {
        "kind": "Why",
        "job": job.name,
        "reason": headline(job, nodes, plan.reason),
        "reasons": [reason for reason in reasons if reason != plan.reason],
        "failure": job_failure(job, nodes),
        "wake_at": iso(plan.wake_at_us),
        "next": [event.text for event in plan.events],
        "console": _console(call, view),
        "placement": _placement(view, market, now_us),
        "ahead": _prefetch(call, view, market),
        "verdicts": diagnoses(call.context.store, job, now_us),
        "use": recent_use(call.context.store, job, now_us),
        "drill": newest_drill(call.context.store, job),
    }


def _save_failed(call: ApiRequest, job: Job) -> list[str]:
    """Return that the newest save failed, and why, if none has succeeded since."""
    row = call.context.store.events.last(job.id, "checkpoint_failed")
    if row is None or job.outcome is not None:
        return []
    saved_us = (saved.committed_at_us for saved in call.context.store.checkpoints.rows(job.id))
    return (
        [f"the newest save failed: {row.event.text}"]
        if row.at_us > max(saved_us, default=0)
        else []
    )


def _placement(view: View, market: Market, now_us: int) -> dict[str, Any]:
    """Return where a job that should run would go now, and the cost of that."""
    if view.job.outcome is not None or view.job.desired is not Desired.RUN:
        return {}
    return placement_data(compared(view, market, now_us), view.job.spec)


def _prefetch(call: ApiRequest, view: View, market: Market) -> list[dict[str, Any]]:
    if view.job.outcome is not None or view.job.desired is not Desired.RUN:
        return []
    return prefetch_data(view, market, call.now_us, call.context.store)


def _console(call: ApiRequest, view: View) -> list[str]:
    """Return the last console output of a machine that did not boot.

    Kept for a day, until a machine of the job trains.
    """
    row = call.context.store.events.last(view.job.id, "console")
    since_us = max((node.training.first_step_at_us for node in view.nodes), default=0)
    if row is None or row.at_us < max(since_us, call.now_us - CONSOLE_US):
        return []
    lines = row.event.data.get("lines")
    output = [str(line) for line in lines] if isinstance(lines, list) else []
    return [row.event.text.partition(" ended with")[0] + " printed last:", *output]


def _decide(view: View, market: Market, user: str, now_us: int) -> Plan:
    """Decide as a pass of the daemon does.

    If a limit blocks a job that would request several machines, it requests one; otherwise none.
    The use of limits is that of the market's load, not of a commit.
    """
    use = LimitUse(
        limits=market.use.limits,
        nodes=market.use.nodes,
        microusd_per_h=market.use.microusd_per_h,
        line=market.queue.snapshot,
    )
    markets = [market]
    if view.job.spec.resources.candidates > 1:
        markets.append(changed(market, hedging=False))
    obstacle = ""
    for candidate in markets:
        plan = decide(view, candidate, now_us)
        room = LimitRoom(lambda: use, lambda _: view.spent_microusd)
        new_launches = launches(plan)
        obstacle = room.take(view.job, user, new_launches) if new_launches else ""
        if not obstacle:
            return plan
    return decide(view, changed(market, blocked=obstacle), now_us)


def _silent_clouds(call: ApiRequest, view: View, market: Market) -> list[str]:
    """Return the clouds that do not answer, among those where the job is or could be."""
    if view.job.outcome is not None:
        return []
    offers = [row.offer for row in rank(view.job.spec, market, call.now_us, job_id=view.job.id)]
    offers += [node.offer for node in view.nodes if node.state is not NodeState.GONE]
    relevant = {offer.provider for offer in offers}
    silent = call.context.clouds.silent_providers()
    return [f"{name}: {text}" for name, text in silent.items() if name in relevant]


def plan(call: ApiRequest) -> dict[str, Any]:
    """The offers that fit a job file, best first, with the reasons why others are unavailable.
    `silent` marks an offer that its cloud listed before it stopped answering."""
    spec, market, data = planned(call)
    return with_spot_value(call, spec, market, data)


def planned(call: ApiRequest) -> tuple[JobSpec, Market, dict[str, Any]]:
    """Return the job of a file with its save size, the market, and its plan without `worth`."""
    parsed = parse_job(call, _placeholder_secrets(call.text("yaml")))
    now_us, spec = call.now_us, _with_save_size(call, parsed.spec)
    market = call.context.market(now_us)
    refuse_slow(parsed.spec, market)
    check_capacity(call.context, parsed.spec, parsed.text)
    warnings = [*parsed.warnings, *check_baked(call, parsed.spec)]
    baked = image_of_offer(parsed.spec, market)
    comparison = compared(of_spec(spec, now_us), market, now_us)
    ranked = comparison.rows
    warnings += mount_warnings(spec, market, [row.offer for row in ranked])
    warnings += unsaved_work_warnings(call, spec, ranked)
    view, store = of_spec(spec, now_us), call.context.store
    warnings += prefetch_warnings(view, market, now_us, store)
    limit = call.number("limit", 20, 1, 1000)
    silent = call.context.clouds.silent_providers()

    def offer_row(row: RankedOffer) -> dict[str, Any]:
        return _offer_data(row, silent, requests_usd_per_h(row.offer, spec, market))

    data = {
        "kind": "Plan",
        "job": parsed.spec.name,
        "num_nodes": parsed.spec.resources.num_nodes,
        "min_nodes": parsed.spec.resources.elastic.min_nodes if shrinks(parsed.spec) else None,
        "checkpoint_gb": spec.checkpoint.size_bytes / 1e9 or None,
        "offers": [
            {**offer_row(row), "baked": baked.get(row.offer.key, "")} for row in ranked[:limit]
        ],
        "storage": storage_data(spec, market),
        "left_out": excluded_by_residency(ranked),
        "moves": moves_data(moves(of_spec(spec, now_us), market, ranked)),
        "placement": placement_data(comparison, spec, limit),
        "ahead": prefetch_data(view, market, now_us, store),
        "cheapest": offer_row(min(ranked, key=_score)) if ranked else None,
        "fits": len(ranked),
        "fitting": sum(not row.excluded for row in ranked),
        "answering": sum(not row.excluded and row.offer.provider not in silent for row in ranked),
        "max_hourly_cost_usd": usd(parsed.spec.limits.max_hourly_microusd) or None,
        "known": len(market.offers),
        "blocked": market.launch.blocked,
        "limits": {
            "max_nodes": market.use.limits.max_nodes or None,
            "max_usd_per_hour": usd(market.use.limits.max_microusd_per_h) or None,
            "nodes": market.use.nodes,
            "usd_per_hour": usd(market.use.microusd_per_h),
        },
        "warnings": warnings,
    }
    return spec, market, with_sizes(call, call.text("yaml"), data)


def _with_save_size(call: ApiRequest, spec: JobSpec) -> JobSpec:
    """Return the job with the size of a save from the file, or from the last job of that name."""
    if spec.checkpoint.size_bytes or spec.checkpoint.engine == "none":
        return spec
    before = call.context.store.jobs.find(spec.name)
    rows = call.context.store.checkpoints.rows(before.id) if before else []
    sizes = [row.bytes for row in rows if row.bytes]
    saves = replace(spec.checkpoint, size_bytes=sizes[-1] if sizes else 0)
    return replace(spec, checkpoint=saves)


def _placeholder_secrets(text: str) -> dict[str, str]:
    """Return a value for every secret, because the placement of a job does not depend on them."""
    try:
        names = parse(text).data.get("secrets") or ()
    except SpecError:
        return {}  # `parse_job` reports the error
    wanted = names if isinstance(names, dict | list) else ()
    return {str(name).removeprefix("secrets:").rsplit(".", 1)[-1]: "-" for name in wanted}


def _score(row: RankedOffer) -> int:
    return row.score_microusd_per_h


def _offer_data(
    row: RankedOffer, silent: Mapping[str, str], requests: float | None
) -> dict[str, Any]:
    return {
        **offer_data(row.offer),
        "total_usd_per_h": usd(row.score_microusd_per_h),
        "checkpoint_usd_per_h": {
            "egress": None if row.egress_microusd_per_h is None else usd(row.egress_microusd_per_h),
            "requests": requests,
        },
        "excluded": row.excluded,
        "silent": silent.get(row.offer.provider, ""),
    }
