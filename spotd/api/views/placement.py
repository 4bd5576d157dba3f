"""The placement of a job as JSON: costs of each place, exclusions by residency, deadline."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from spotd.api.request.request import ApiError, ApiRequest, bad_input
from spotd.api.views.resources import iso
from spotd.domain.job import JobSpec
from spotd.domain.market import Market
from spotd.domain.units import S
from spotd.planner.placement.build_situation import ASSUMED_S
from spotd.planner.placement.cost_to_finish import CostToFinish
from spotd.planner.placement.move_payback import MoveEstimate
from spotd.planner.placement.rank import RESIDENCE, RankedOffer, steered
from spotd.planner.rules.spot_policy_rule import PolicyComparison, PolicyIntent, compared, of_spec
from spotd.planner.spot_policy import Option
from spotd.planner.spot_policy.deadline_slack import earliest_s, late_s, spare_looks

MOST_MOVES = 5  # moves in a reply, the best first
MOST = 20  # options in a reply, the best first
WRITING_S = 300.0  # time that a user needs from reading a deadline to submitting with it


def placement_data(
    comparison: PolicyComparison, spec: JobSpec, limit: int = MOST
) -> dict[str, Any]:
    """Return the cost of finishing the job in each place, in dollars by term, best first.

    A job that the policy steers also gets the policy's choice, with the options that it compared.
    When the remaining work is unknown, the costs are for `assumed_h` hours of work. Empty if
    nothing is compared.
    """
    ordered = sorted(comparison.costs, key=lambda cost: (cost.total_usd, cost.row.offer.key))
    data = {"steers": steered(spec), "costs": [_cost(cost) for cost in ordered[:limit]]}
    data["assumed_h"] = ASSUMED_S / 3600 if comparison.assumed else None
    intent = comparison.intent
    if intent is None:
        return {**data, "choice": None, "deadline": None} if ordered else {}
    choice, situation = intent.choice, intent.situated.situation
    return {
        **data,
        "choice": {
            "action": choice.action.value,
            "offer": intent.ask.offer.key if intent.ask else None,
            "why": choice.why,
            "guarded": choice.guarded,
            "options": [_option(option) for option in choice.options[:limit]],
        },
        "left_h": round(situation.work.left_s / 3600, 3),
        "start_s": round(situation.work.restart_s, 1),
        "lost_s": round(situation.work.lost_s, 1),
        "deadline": _deadline(intent),
    }


def _cost(cost: CostToFinish) -> dict[str, Any]:
    terms = {
        "train": cost.train_usd,
        "start": cost.start_usd,
        "lost": cost.lost_usd,
        "egress": cost.egress_usd,
        "total": cost.total_usd,
    }
    offer = cost.row.offer
    return {
        "offer": offer.key,
        "provider": offer.provider,
        "zone": offer.zone,
        "instance_type": offer.instance_type,
        "capacity_type": offer.capacity_type.value,
        "hours": round(cost.hours, 3),
        "usd": {name: round(usd, 4) for name, usd in terms.items()},
    }


def _option(option: Option) -> dict[str, Any]:
    """Return one option that the policy compared; `rest` is the cost after its first step."""
    terms = {
        "here": option.here_usd,
        "start": option.start_usd,
        "lost": option.lost_usd,
        "egress": option.egress_usd,
        "rest": option.rest_usd,
        "total": option.score_usd,
    }
    usd_by_term = {name: round(usd, 4) for name, usd in terms.items()}
    return {"action": option.action.value, "pool": option.pool, "usd": usd_by_term}


def _deadline(intent: PolicyIntent) -> dict[str, Any] | None:
    situation = intent.situated.situation
    work = situation.work
    if work.deadline_s is None:
        return None
    can_promise = bool(intent.situated.lasting)
    spare_intervals = spare_looks(situation)
    return {
        "at": iso(int(work.deadline_s * S)),
        "earliest": _promisable(earliest_s(situation)) if can_promise else None,
        "late_s": round(intent.choice.late_s or late_s(situation), 1) if can_promise else None,
        "spare_s": round(spare_intervals * work.look_s, 1)
        if spare_intervals != float("inf")
        else None,
        "guarded": intent.choice.guarded,
        "granted_within_s": work.granted_s,
    }


def _promisable(earliest: float) -> str | None:
    """Return a whole minute that can still be promised when the user submits with it."""
    return iso(math.ceil((earliest + WRITING_S) / 60) * 60 * S)


def moves_data(moves: Sequence[MoveEstimate]) -> list[dict[str, Any]]:
    """Return the costs of moving away from the job's state and data, soonest paid back first.

    `break_even_h` is null where the move never pays.
    """
    return [
        {
            "offer": move.there.offer.key,
            "from_offer": move.near.offer.key,
            "checkpoint_usd": round(move.checkpoint_usd, 4),
            "data_usd": round(move.data_usd, 4),
            "usd": round(move.usd, 4),
            "seconds": round(move.seconds, 1),
            "saves_usd_per_h": round(move.saves_usd_per_h, 4),
            "break_even_h": None if move.hours is None else round(move.hours, 2),
        }
        for move in moves[:MOST_MOVES]
    ]


def excluded_by_residency(rows: Iterable[RankedOffer]) -> list[dict[str, Any]]:
    """Return the offers excluded by residency or operator: count and reason, most first."""
    counts = Counter(row.excluded for row in rows if row.code == RESIDENCE)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [{"count": count, "why": why} for why, count in ordered]


def refuse_misplaced(rows: Sequence[RankedOffer]) -> None:
    """Raise ApiError where offers fit, but none is in a place where the job may run."""
    excluded = excluded_by_residency(rows)
    if not rows or sum(reason["count"] for reason in excluded) < len(rows):
        return
    reasons = "; ".join(f"{reason['count']} because {reason['why']}" for reason in excluded[:3])
    raise ApiError(
        409,
        "refused",
        f"all {len(rows)} offers that fit are out of place: {reasons}",
        "configure regions that are there, allow more places (residency, not_operated_from), or "
        "name a bucket where its store is a folder",
    )


def check_deadline(call: ApiRequest, spec: JobSpec, market: Market) -> list[str]:
    """Refuse a job that cannot meet its deadline; with `late` in the body, warn instead.

    Nothing is promised or refused for machines that may be taken away. Raises ApiError (bad input).
    """
    intent = compared(of_spec(spec, call.now_us), market, call.now_us).intent
    situated = intent.situated if intent is not None else None
    if situated is None or situated.situation.work.deadline_s is None:
        return []
    if not situated.lasting:
        missing = (
            "no on-demand machine that the job permits (capacity, max_hourly_cost) is available"
        )
        return [f"its deadline is not promised: {missing} now"]
    situation, work = situated.situation, situated.situation.work
    earliest = earliest_s(situation)
    if work.deadline_s is None or work.deadline_s >= earliest:
        return []
    message = (
        f"the deadline {iso(int(work.deadline_s * S))} cannot be promised: with "
        f"{work.left_s / 3600:.1f} h of work, {work.granted_s / 60:.0f} min for a machine to be "
        f"granted and {work.restart_s / 60:.0f} min for its start, the earliest is "
        f"{_promisable(earliest)}"
    )
    if call.body.get("late") is True:
        return [f"{message}; it runs on demand, as fast as it can"]
    raise bad_input(
        message, "spotd.deadline of then or later, less work, faster machines, or --late"
    )
