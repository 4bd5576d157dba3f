"""What placement makes of a job, for people: what each place would cost it until it is done, what
is left out because of where it stands, and whether its deadline can be kept."""

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

MOST_MOVES = 5  # of them, likewise
MOST = 20  # options that are told, the best first
WRITING_S = 300.0  # from reading of a deadline to submitting with it


def placement_data(found: PolicyComparison, spec: JobSpec, limit: int = MOST) -> dict[str, Any]:
    """What each place would cost the job until it is done, each term in dollars, the best first;
    and of a job that is steered the policy's choice, with what it weighed. Where nobody knows how
    much is left, they are of `assumed_h` hours of work. Empty where nothing is compared."""
    ordered = sorted(found.costs, key=lambda one: (one.total_usd, one.row.offer.key))
    data = {"steers": steered(spec), "costs": [_cost(one) for one in ordered[:limit]]}
    data["assumed_h"] = ASSUMED_S / 3600 if found.assumed else None
    intent = found.intent
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
            "options": [_option(one) for one in choice.options[:limit]],
        },
        "left_h": round(situation.work.left_s / 3600, 3),
        "start_s": round(situation.work.restart_s, 1),
        "lost_s": round(situation.work.lost_s, 1),
        "deadline": _deadline(intent),
    }


def _cost(one: CostToFinish) -> dict[str, Any]:
    terms = {
        "train": one.train_usd,
        "start": one.start_usd,
        "lost": one.lost_usd,
        "egress": one.egress_usd,
        "total": one.total_usd,
    }
    offer = one.row.offer
    return {
        "offer": offer.key,
        "provider": offer.provider,
        "zone": offer.zone,
        "instance_type": offer.instance_type,
        "capacity_type": offer.capacity_type.value,
        "hours": round(one.hours, 3),
        "usd": {name: round(usd, 4) for name, usd in terms.items()},
    }


def _option(one: Option) -> dict[str, Any]:
    """What the policy weighed; the rest is what comes after its first step."""
    terms = {
        "here": one.here_usd,
        "start": one.start_usd,
        "lost": one.lost_usd,
        "egress": one.egress_usd,
        "rest": one.rest_usd,
        "total": one.score_usd,
    }
    told = {name: round(usd, 4) for name, usd in terms.items()}
    return {"action": one.action.value, "pool": one.pool, "usd": told}


def _deadline(intent: PolicyIntent) -> dict[str, Any] | None:
    situation = intent.situated.situation
    work = situation.work
    if work.deadline_s is None:
        return None
    promised = bool(intent.situated.lasting)
    spare = spare_looks(situation)
    return {
        "at": iso(int(work.deadline_s * S)),
        "earliest": _told(earliest_s(situation)) if promised else None,
        "late_s": round(intent.choice.late_s or late_s(situation), 1) if promised else None,
        "spare_s": round(spare * work.look_s, 1) if spare != float("inf") else None,
        "guarded": intent.choice.guarded,
        "granted_within_s": work.granted_s,
    }


def _told(earliest: float) -> str | None:
    """A whole minute, and one that can still be promised to who writes it down now."""
    return iso(math.ceil((earliest + WRITING_S) / 60) * 60 * S)


def moves_data(found: Sequence[MoveEstimate], limit: int = MOST_MOVES) -> list[dict[str, Any]]:
    """What it costs to move away from where the job's state and data lie, the soonest paid back
    first; `break_even_h` is null where it never is."""
    return [
        {
            "offer": one.there.offer.key,
            "from_offer": one.near.offer.key,
            "checkpoint_usd": round(one.checkpoint_usd, 4),
            "data_usd": round(one.data_usd, 4),
            "usd": round(one.usd, 4),
            "seconds": round(one.seconds, 1),
            "saves_usd_per_h": round(one.saves_usd_per_h, 4),
            "break_even_h": None if one.hours is None else round(one.hours, 2),
        }
        for one in found[:limit]
    ]


def left_out(rows: Iterable[RankedOffer]) -> list[dict[str, Any]]:
    """Offers that fit, but for where they stand or who runs them: how many for what, most first."""
    counts = Counter(row.excluded for row in rows if row.code == RESIDENCE)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [{"count": count, "why": why} for why, count in ordered]


def refuse_misplaced(rows: Sequence[RankedOffer]) -> None:
    """Raises ApiError where offers fit, and none of them stands where the job may run."""
    found = left_out(rows)
    if not rows or sum(one["count"] for one in found) < len(rows):
        return
    told = "; ".join(f"{one['count']} because {one['why']}" for one in found[:3])
    raise ApiError(
        409,
        "refused",
        f"all {len(rows)} offers that fit are out of place: {told}",
        "configure regions that are there, allow more places (residency, not_operated_from), or "
        "name a bucket where its store is a folder",
    )


def check_deadline(call: ApiRequest, spec: JobSpec, market: Market) -> list[str]:
    """Refuse a job whose deadline cannot be kept, unless its user says `late`: then it is a
    warning. On machines that may be taken away nothing is promised, and nothing refused."""
    intent = compared(of_spec(spec, call.now_us), market, call.now_us).intent
    situated = intent.situated if intent is not None else None
    if situated is None or situated.situation.work.deadline_s is None:
        return []
    if not situated.lasting:
        what = "no machine on demand that the job permits (capacity, max_hourly_cost) is to be had"
        return [f"its deadline is not promised: {what} now"]
    situation, work = situated.situation, situated.situation.work
    earliest = earliest_s(situation)
    if work.deadline_s is None or work.deadline_s >= earliest:
        return []
    text = (
        f"the deadline {iso(int(work.deadline_s * S))} cannot be promised: with "
        f"{work.left_s / 3600:.1f} h of work, {work.granted_s / 60:.0f} min for a machine to be "
        f"granted and {work.restart_s / 60:.0f} min for its start, the earliest is "
        f"{_told(earliest)}"
    )
    if call.body.get("late") is True:
        return [f"{text}; it runs on demand, as fast as it can"]
    raise bad_input(text, "spotd.deadline of then or later, less work, faster machines, or --late")
