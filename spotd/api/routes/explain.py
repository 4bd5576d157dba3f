"""Routes that explain: why a job is where it is, and where a job file would run. Neither acts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spotd.api.request.request import ApiError, ApiRequest
from spotd.api.routes.drills import newest_drill
from spotd.api.routes.jobs import parse_job
from spotd.api.routes.rightsize import with_sizes
from spotd.api.views.baked_image import check_baked, image_of_offer
from spotd.api.views.checkpoint_costs import requests_usd_per_h, storage_data
from spotd.api.views.diagnosis import use_lately, verdicts
from spotd.api.views.gang_network import refuse_slow
from spotd.api.views.placement import left_out, moves_data, placement_data
from spotd.api.views.prefetch import ahead_data, ahead_warnings
from spotd.api.views.resources import iso, offer_data, usd
from spotd.api.views.spot_value import with_worth
from spotd.api.views.store_capacity import check_capacity, streaming
from spotd.domain.job import Desired, JobSpec
from spotd.domain.market import Market
from spotd.domain.plan import Plan
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.domain.view import View
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
    """What a pass would decide now and for which reasons, computed afresh and thrown away."""
    job = call.job()
    now_us = call.now_us
    view = call.backing.store.load_view(job.id, now_us)
    if view is None:
        raise ApiError(404, "not_found", f"job {job.name} is gone", "spotctl ps --all")
    market = call.backing.market(now_us)
    user = call.backing.store.job_users([job.id]).get(job.id, "")
    plan = _decide(view, market, user, now_us)
    return {
        "kind": "Why",
        "job": job.name,
        "reason": plan.reason,
        "reasons": [*plan.reasons, *_silences(call, view, market)],
        "wake_at": iso(plan.wake_at_us),
        "next": [event.text for event in plan.events],
        "console": _console(call, view),
        "placement": _placement(view, market, now_us),
        "ahead": _ahead(call, view, market),
        "verdicts": verdicts(call.backing.store, job, now_us),
        "use": use_lately(call.backing.store, job, now_us),
        "drill": newest_drill(call.backing.store, job),
    }


def _placement(view: View, market: Market, now_us: int) -> dict[str, Any]:
    """Of a job that is wanted: where it would go now, and what that would cost."""
    if view.job.outcome is not None or view.job.desired is not Desired.RUN:
        return {}
    return placement_data(compared(view, market, now_us), view.job.spec)


def _ahead(call: ApiRequest, view: View, market: Market) -> list[dict[str, Any]]:
    if view.job.outcome is not None or view.job.desired is not Desired.RUN:
        return []
    return ahead_data(view, market, call.now_us, call.backing.store)


def _console(call: ApiRequest, view: View) -> list[str]:
    """The last words of a machine that did not come up, until one has trained since, for a day."""
    row = call.backing.store.last_event(view.job.id, "console")
    since_us = max((node.first_step_at_us for node in view.nodes), default=0)
    if row is None or row.at_us < max(since_us, call.now_us - CONSOLE_US):
        return []
    lines = row.event.data.get("lines")
    said = [str(line) for line in lines] if isinstance(lines, list) else []
    return [row.event.text.partition(" ended with")[0] + " said last:", *said]


def _decide(view: View, market: Market, user: str, now_us: int) -> Plan:
    """As a pass does: one that a limit is in the way of asks for one machine where it would ask for
    several, and else for none. What is in use is as the market was read, not as at a commit."""
    use = LimitUse(market.limits, market.nodes, market.microusd_per_h, market.line)
    markets = [market]
    if view.job.spec.candidates > 1:
        markets.append(replace(market, hedging=False))
    obstacle = ""
    for tried in markets:
        plan = decide(view, tried, now_us)
        room = LimitRoom(lambda: use, lambda _: view.spent_microusd)
        added = launches(plan)
        obstacle = room.take(view.job, user, added) if added else ""
        if not obstacle:
            return plan
    return decide(view, replace(market, blocked=obstacle), now_us)


def _silences(call: ApiRequest, view: View, market: Market) -> list[str]:
    """The clouds that do not answer, of those where the job is or could be."""
    if view.job.outcome is not None:
        return []
    offers = [row.offer for row in rank(view.job.spec, market, call.now_us, job_id=view.job.id)]
    offers += [node.offer for node in view.nodes if node.state is not NodeState.GONE]
    concerned = {offer.provider for offer in offers}
    silent = call.backing.silent()
    return [f"{name}: {text}" for name, text in silent.items() if name in concerned]


def plan(call: ApiRequest) -> dict[str, Any]:
    """The offers that fit a job file, best first, with why the others are not to be had. `silent`
    says that an offer is what a cloud said before it stopped answering."""
    spec, market, data = planned(call)
    return with_worth(call, spec, market, data)


def planned(call: ApiRequest) -> tuple[JobSpec, Market, dict[str, Any]]:
    """The job of a file, with the size of its saves, the market, and its plan but for `worth`."""
    parsed = parse_job(call, _stand_ins(call.text("yaml")))
    now_us, spec = call.now_us, _sized(call, parsed.spec)
    market = call.backing.market(now_us)
    refuse_slow(parsed.spec, market)
    check_capacity(call.backing, parsed.spec, parsed.text)
    told = [*parsed.warnings, *check_baked(call, parsed.spec)]
    baked = image_of_offer(parsed.spec, market)
    found = compared(of_spec(spec, now_us), market, now_us)
    ranked = found.rows
    told += streaming(spec, market, [row.offer for row in ranked])
    asked = (of_spec(spec, now_us), market, now_us, call.backing.store)
    told += ahead_warnings(*asked)
    limit = call.number("limit", 20, 1, 1000)
    silent = call.backing.silent()

    def offer_row(row: RankedOffer) -> dict[str, Any]:
        return _offer_data(row, silent, requests_usd_per_h(row.offer, spec, market))

    data = {
        "kind": "Plan",
        "job": parsed.spec.name,
        "num_nodes": parsed.spec.num_nodes,
        "min_nodes": parsed.spec.elastic.min_nodes if shrinks(parsed.spec) else None,
        "checkpoint_gb": spec.checkpoint.size_bytes / 1e9 or None,
        "offers": [
            {**offer_row(row), "baked": baked.get(row.offer.key, "")} for row in ranked[:limit]
        ],
        "storage": storage_data(spec, market),
        "left_out": left_out(ranked),
        "moves": moves_data(moves(of_spec(spec, now_us), market, ranked)),
        "placement": placement_data(found, spec, limit),
        "ahead": ahead_data(*asked),
        "cheapest": offer_row(min(ranked, key=_score)) if ranked else None,
        "fits": len(ranked),
        "fitting": sum(not row.excluded for row in ranked),
        "answering": sum(not row.excluded and row.offer.provider not in silent for row in ranked),
        "max_hourly_cost_usd": usd(parsed.spec.max_hourly_microusd) or None,
        "known": len(market.offers),
        "blocked": market.blocked,
        "limits": {
            "max_nodes": market.limits.max_nodes or None,
            "max_usd_per_hour": usd(market.limits.max_microusd_per_h) or None,
            "nodes": market.nodes,
            "usd_per_hour": usd(market.microusd_per_h),
        },
        "warnings": told,
    }
    return spec, market, with_sizes(call, call.text("yaml"), data)


def _sized(call: ApiRequest, spec: JobSpec) -> JobSpec:
    """With the size of a save as the file says, or as the last job of that name had it."""
    if spec.checkpoint.size_bytes or spec.checkpoint.engine == "none":
        return spec
    before = call.backing.store.find_job(spec.name)
    rows = call.backing.store.checkpoints(before.id) if before else []
    sizes = [row.bytes for row in rows if row.bytes]
    saves = replace(spec.checkpoint, size_bytes=sizes[-1] if sizes else 0)
    return replace(spec, checkpoint=saves)


def _stand_ins(text: str) -> dict[str, str]:
    """A value for every secret: where a job would run does not depend on them."""
    try:
        names = parse(text).data.get("secrets") or ()
    except SpecError:
        return {}  # `parse_job` says what is wrong
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
