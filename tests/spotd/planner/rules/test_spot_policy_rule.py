"""A job that says how much there is to do: when it asks, waits, moves, and stays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from providers.base import CapacityType, Offer, OfferRequest, Scope
from spotd.domain.fast_replace import changed
from spotd.domain.job import CheckpointSpec, JobSpec
from spotd.domain.market import Market, Refusal, WaitingRequest
from spotd.domain.node import Node
from spotd.domain.node_history import FleetHistory, NodeLifetime
from spotd.domain.preferences import GenerationSaves, Preferences
from spotd.domain.queue import QueueEntry
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.planner.core.plan_builder import PlanBuilder
from spotd.planner.placement.rank import steered
from spotd.planner.rules.spot_policy_rule import steer
from tests.spotd.planner.build import (
    JOB,
    NOW,
    by_id,
    head,
    hello,
    job,
    kinds,
    market,
    node,
    notice,
    offer,
    settle,
    spec,
    view,
)

SPOT, ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND
HOUR = 3600 * S
CHEAP = offer("aws-1a", 10.0, list_microusd_per_h=40_000_000)
FULL = offer("aws-1a", 40.0, capacity_type=ON_DEMAND, list_microusd_per_h=40_000_000)
OTHER = offer("gcp-1a", 50.0, capacity_type=ON_DEMAND, list_microusd_per_h=50_000_000)
# Starts that took two minutes: else ten are reckoned with.
STARTS = tuple(
    NodeLifetime(
        f"x-g{n}-0", FULL.key, NOW - HOUR, "", NOW - HOUR, trained_at_us=NOW - HOUR + 120 * S
    )
    for n in range(8)
)


def wanted(hours_left: float = 60.0, work_h: float = 40.0, **fields: Any) -> JobSpec:
    """A job that has to be done within `hours_left`."""
    base = {
        "preferences": Preferences(work_s=work_h * 3600),
        "deadline_us": NOW + int(hours_left * HOUR) if hours_left else 0,
        "checkpoint": CheckpointSpec("file:///ckpt", "spotd", every_s=300.0),
    }
    return spec(**(base | fields))


def sold(*offers: Offer, **fields: Any) -> Market:
    return market(offers or (CHEAP, FULL, OTHER), history=FleetHistory(STARTS), **fields)


def refused(of: Offer, code: str = "CapacityError", ago_s: float = 1.0) -> Refusal:
    return Refusal(of.key, Scope.OFFER, code, NOW - int(ago_s * S), f"{JOB}-g1-x")


def asked(before: View, market_: Market) -> list[str]:
    """The offers that are newly asked for."""
    after, _ = settle(before, market_)
    old = {n.id for n in before.nodes}
    return [n.offer.key for n in after.nodes if n.id not in old]


def trains(of: Offer, **fields: Any) -> Node:
    state = fields.pop(
        "state", NodeState.DRAINING if "leave_reason" in fields else NodeState.RUNNING
    )
    seen = node(NodeState.RUNNING, offer=of)
    return changed(seen, **({"state": state} | fields))


def a_view(*nodes: Node, of: JobSpec | None = None, **fields: Any) -> View:
    """Half an hour of work is saved, and the last checkpoint was a second ago."""
    said = {"head": head()} if nodes else {}
    kept = (GenerationSaves(1, 10, 100, NOW - 1800 * S, NOW - S),) if nodes else ()
    return view(*nodes, job={"spec": of or wanted(), **said}, saved=kept, **fields)


def test_who_is_steered() -> None:
    assert steered(wanted())
    assert steered(wanted(0))
    assert not steered(spec(deadline_us=NOW + HOUR))
    assert not steered(wanted(ordered=True))
    assert not steered(wanted(capacity_ordered=True))


def test_with_time_to_spare_it_asks_for_spot() -> None:
    assert asked(a_view(), sold()) == [CHEAP.key]


def test_a_job_that_hedges_asks_for_spot_in_several_places_side_by_side() -> None:
    """Each as the policy would if the others were not, and never for on-demand beside spot."""
    near = offer("aws-1b", 11.0, list_microusd_per_h=40_000_000)
    dear = offer("aws-1c", 39.9, list_microusd_per_h=40_000_000)
    there = sold(CHEAP, near, FULL)
    assert asked(a_view(of=wanted(candidates=2)), there) == [CHEAP.key, near.key]
    assert asked(a_view(of=wanted(candidates=3)), there) == [CHEAP.key, near.key]
    assert asked(a_view(of=wanted(candidates=2)), sold(CHEAP, dear, FULL)) == [CHEAP.key]
    assert asked(a_view(of=wanted(candidates=2)), changed(there, hedging=False)) == [CHEAP.key]
    assert asked(a_view(of=wanted(40.2, candidates=2)), there) == [FULL.key]


@pytest.mark.req("PLC-07")
def test_without_time_to_spare_it_asks_for_on_demand_at_once() -> None:
    assert asked(a_view(of=wanted(40.2)), sold()) == [FULL.key]


def test_a_deadline_that_cannot_be_kept_any_more_is_still_run_for() -> None:
    assert asked(a_view(of=wanted(2.0)), sold()) == [FULL.key]


def test_with_time_to_spare_it_waits_for_spot_that_is_out() -> None:
    before = a_view(of=wanted(200.0, 10.0))
    after, plan = settle(before, sold(refusals=(refused(CHEAP),)))
    assert after.nodes == ()
    assert plan.reason.startswith("waiting for spot")
    assert NOW < plan.wake_at_us <= NOW + 61 * S
    assert after.job.queue.waiting_since_us == 0  # nobody is alarmed: it does as it should


STOOD = {"room_since_us": NOW - 90 * S, "room_asked_us": NOW - 15 * S, "yields_to": "hi"}


def test_who_waits_for_spot_stands_in_nobodys_way() -> None:
    """Its turn at the limits was for the machine that it does not want any more."""
    before = a_view(of=wanted(200.0, 10.0))
    before = replace(before, job=changed(before.job, **STOOD))
    after, _ = settle(before, sold(refusals=(refused(CHEAP),)))
    assert (after.job.queue.room_since_us, after.job.queue.room_asked_us) == (0, 0)
    assert after.job.queue.yields_to == "hi", "it has not got back what it gave"


def test_at_the_limit_who_waits_for_spot_stands_in_no_line_for_room() -> None:
    """It asks for nothing: a limit is not what it waits for."""
    full = sold(refusals=(refused(CHEAP),), blocked="limits.max_nodes is 1")
    after, plan = settle(a_view(of=wanted(200.0, 10.0)), full)
    assert (after.job.queue.room_since_us, after.job.queue.offers_at_us) == (0, NOW + 59 * S)
    assert plan.reason.startswith("waiting for spot")


def test_at_the_limit_who_asks_stands_in_line_with_what_it_asks_for() -> None:
    """And not with the cheapest there is, which its deadline does not leave it."""
    full = sold(blocked="limits.max_nodes is 1")
    after, plan = settle(a_view(of=wanted(11.6, 11.5)), full)
    assert after.job.queue.room_since_us == NOW
    assert after.job.queue.room_microusd_per_h == FULL.price_microusd_per_h
    assert plan.reason == "waiting: limits.max_nodes is 1"


def test_who_is_placed_again_has_nobody_before_it() -> None:
    before = a_view()
    before = replace(before, job=changed(before.job, **STOOD))
    after, _ = settle(before, sold())
    assert [n.offer.key for n in after.nodes] == [CHEAP.key]
    assert (after.job.queue.room_since_us, after.job.queue.yields_to) == (0, "")


def ahead_at(of: Offer, **fields: Any) -> Market:
    """What was out is back, and a job of higher priority is to ask for it first."""
    high = WaitingRequest(QueueEntry("hi", "hi", 1, priority=900), spec(priority=900), NOW - S)
    return sold(refusals=(refused(of, ago_s=61.0),), requests=(high,), **fields)


def test_who_waits_for_spot_is_in_line_for_it() -> None:
    """And looks when it is back, not only when the policy would."""
    before = a_view(of=wanted(200.0, 10.0))
    after, plan = settle(before, sold(refusals=(refused(CHEAP),)))
    assert after.job.queue.offers_at_us == NOW + 59 * S
    assert plan.wake_at_us <= NOW + 59 * S


def test_spot_that_another_asks_for_first_is_waited_for() -> None:
    """Whether it has time or none, seconds matter less than the price; not where its deadline
    leaves none."""
    for of in (wanted(200.0, 10.0), wanted(0)):
        after, plan = settle(a_view(of=of), ahead_at(CHEAP))
        assert (after.nodes, after.job.queue.offers_at_us) == ((), NOW)
        assert plan.wake_at_us <= NOW + 2 * S
        assert any("hi (priority 900) requests first" in reason for reason in plan.reasons)
    assert asked(a_view(of=wanted(11.6, 11.5)), ahead_at(CHEAP)) == [FULL.key]


def test_nobody_moves_to_what_another_asks_for_first() -> None:
    there = offer("gcp-1a", 2.0, list_microusd_per_h=40_000_000)
    before = a_view(trains(FULL))
    now = {"offers": (FULL, there)}
    free = settle(before, sold(*now["offers"]))[0]
    assert free.nodes[0].departure.leave_reason is LeaveReason.MOVED
    high = WaitingRequest(QueueEntry("hi", "hi", 1, priority=900), spec(priority=900), NOW - S)
    kept = sold(*now["offers"], refusals=(refused(there, ago_s=61.0),), requests=(high,))
    assert settle(before, kept)[0].nodes[0].departure.leave_reason is None


def test_without_a_deadline_nothing_is_waited_for() -> None:
    assert asked(a_view(of=wanted(0)), sold(refusals=(refused(CHEAP),))) == [FULL.key]


def test_spot_alone_waits_past_its_deadline() -> None:
    """Nothing else is permitted: the guard has nothing to ask for."""
    only = changed(wanted(1.0), alternatives=(OfferRequest("H100", 8, capacity_types=(SPOT,)),))
    after, _ = settle(a_view(of=only), sold(refusals=(refused(CHEAP),)))
    assert after.nodes == ()
    assert asked(a_view(of=only), sold()) == [CHEAP.key]


@pytest.mark.parametrize("hours", [39.7, 39.0])
def test_spot_that_runs_is_left_when_the_time_gets_short(hours: float) -> None:
    here = trains(CHEAP)
    after, plan = settle(a_view(here, of=wanted(hours)), sold())
    moved = by_id(after, here)
    assert (moved.state, moved.departure.leave_reason) == (NodeState.DRAINING, LeaveReason.MOVED)
    assert "moves" in kinds(plan)
    (fresh,) = [n for n in after.nodes if n.generation == 2]
    assert fresh.offer == FULL  # in the same pass


def test_spot_that_runs_is_looked_at_before_there_is_no_time_left() -> None:
    """By then its newest checkpoint is another one: what is unsaved is the same."""
    here = trains(CHEAP)
    before = a_view(here)

    def at(now_us: int) -> tuple[NodeState, int]:
        saved = replace(before.job, head=head(seen_at_us=now_us - S))
        later = PlanBuilder(replace(before, job=saved), sold(), now_us)
        steer(later)
        return by_id(later.view, here).state, later.plan().wake_at_us

    state, wake_at_us = at(NOW)
    assert (state, wake_at_us) == (NodeState.RUNNING, NOW + 300 * S)
    now_us = NOW + 19 * HOUR
    while state is NodeState.RUNNING:
        last_us, (state, now_us) = now_us, at(now_us)
        assert now_us <= last_us + 300 * S
    assert NOW + 19 * HOUR < last_us < NOW + 21 * HOUR
    assert at(last_us - 180 * S)[0] is NodeState.RUNNING


def test_on_demand_returns_to_spot_when_there_is_time() -> None:
    here = trains(FULL)
    after, _ = settle(a_view(here, of=wanted(200.0)), sold())
    assert by_id(after, here).departure.leave_reason is LeaveReason.MOVED
    assert [n.offer for n in after.nodes if n.generation == 2] == [CHEAP]


def test_nobody_moves_for_money_who_has_not_shown_that_it_saves() -> None:
    here = trains(FULL)
    unseen = view(here, job={"spec": wanted(200.0)})
    assert asked(unseen, sold()) == []
    script = wanted(200.0, checkpoint=CheckpointSpec("file:///ckpt", "none", directory="out"))
    assert asked(a_view(here, of=script), sold()) == []


def test_on_demand_stays_when_spot_is_out_and_looks_again() -> None:
    here = trains(FULL)
    after, plan = settle(a_view(here, of=wanted(42.0)), sold(refusals=(refused(CHEAP),)))
    assert by_id(after, here).state is NodeState.RUNNING
    assert NOW < plan.wake_at_us <= NOW + 300 * S


def test_on_demand_is_given_back_when_it_has_saved_where_waiting_for_spot_costs_less() -> None:
    here = trains(FULL)
    out = sold(refusals=(refused(CHEAP),))
    after, plan = settle(a_view(here, of=wanted(200.0)), out)
    left = by_id(after, here)
    assert (left.state, left.departure.leave_reason) == (NodeState.DRAINING, LeaveReason.CANCELLED)
    assert "waits for spot" in left.departure.leave_text
    assert "pauses" in kinds(plan)
    assert asked(after, out) == []


def test_on_demand_that_takes_long_to_save_is_not_given_back_without_the_time_for_it() -> None:
    here, out = trains(FULL), sold(refusals=(refused(CHEAP),))
    for grace_s, state in ((60.0, NodeState.DRAINING), (200 * 3600.0, NodeState.RUNNING)):
        of = changed(wanted(200.0), stop_grace_s=grace_s)
        after, _ = settle(a_view(here, of=of), out)
        assert by_id(after, here).state is state


def test_who_has_not_shown_that_it_saves_is_not_paused() -> None:
    here = trains(FULL)
    saved = a_view(here).saved
    unsaved = view(here, job={"spec": wanted(200.0), "head": None}, saved=saved)
    after, _ = settle(unsaved, sold(refusals=(refused(CHEAP),)))
    assert by_id(after, here).state is NodeState.RUNNING


def test_spot_moves_to_spot_where_the_rest_costs_less() -> None:
    here = trains(CHEAP)
    cheaper = offer("gcp-1b", CHEAP.price_microusd_per_h / 2e6, list_microusd_per_h=50_000_000)
    after, plan = settle(a_view(here, of=wanted(200.0)), sold(cheaper, CHEAP, FULL))
    assert by_id(after, here).departure.leave_reason is LeaveReason.MOVED
    assert plan.wake_at_us <= NOW + 300 * S


def a_move(
    refusals: tuple[Refusal, ...] = (), *, deadline_h: float = 200.0, **fields: Any
) -> tuple[View, Market]:
    """It was to move to spot, and no replacement is coming any more."""
    here = trains(
        FULL,
        **{
            "state": NodeState.DRAINING,
            "leave_reason": LeaveReason.MOVED,
            "left_at_us": NOW - 9 * S,
            "drained_at_us": NOW - 9 * S,
        }
        | fields,
    )
    return a_view(here, of=wanted(deadline_h)), sold(refusals=refusals)


def test_whose_replacement_is_refused_stays() -> None:
    before, market_ = a_move((refused(CHEAP),), deadline_h=42.0)
    after, plan = settle(before, market_)
    (here,) = after.nodes
    assert (here.state, here.departure.leave_reason, here.departure.left_at_us) == (
        NodeState.RUNNING,
        None,
        0,
    )
    assert "stays" in kinds(plan)


def test_whose_replacement_is_refused_waits_for_the_next_where_that_costs_less() -> None:
    before, market_ = a_move((refused(CHEAP),))
    after, plan = settle(before, market_)
    (here,) = after.nodes
    assert (here.state, here.departure.leave_reason) == (NodeState.DRAINING, LeaveReason.CANCELLED)
    assert "pauses" in kinds(plan)
    assert "stays" not in kinds(plan)


@pytest.mark.parametrize("said", ["told_release_at_us", "released_at_us"])
def test_who_has_released_does_not_go_on(said: str) -> None:
    before, market_ = a_move((refused(CHEAP),), **{said: NOW - S})
    after, _ = settle(before, market_)
    assert after.nodes[0].state is NodeState.DRAINING


def test_a_replacement_that_comes_is_waited_for() -> None:
    before, market_ = a_move((refused(CHEAP),))
    coming = hello(generation=2, offer=offer("gcp-1a", 9.0))
    both = a_view(*before.nodes, coming, of=wanted(200.0))
    after, plan = settle(both, market_)
    assert by_id(after, before.nodes[0]).state is NodeState.DRAINING
    assert "stays" not in kinds(plan)


def test_what_was_left_by_a_move_may_be_asked_for_again() -> None:
    """The guard may need it at any time."""
    gone = trains(
        FULL, state=NodeState.TERMINATING, leave_reason=LeaveReason.MOVED, left_at_us=NOW - S
    )
    before = a_view(gone, of=wanted(39.7))
    assert asked(before, sold()) == [FULL.key]


def test_spot_that_comes_too_late_is_given_back_for_on_demand() -> None:
    coming = node(NodeState.BOOTING, offer=CHEAP)
    before = view(coming, job={"spec": wanted(40.2), "first_step_at_us": 0})
    after, _ = settle(before, sold())
    assert by_id(after, coming).state is NodeState.TERMINATING
    assert [n.offer for n in after.nodes if n.id != coming.id] == [FULL]


def test_a_notice_is_no_place_to_stay() -> None:
    here = trains(CHEAP, notices=(notice(),))
    spare = offer("gcp-1b", 12.0, list_microusd_per_h=50_000_000)
    after, _ = settle(a_view(here), sold(CHEAP, FULL, spare))
    assert by_id(after, here).departure.leave_reason is LeaveReason.PREEMPTED
    assert [n.offer for n in after.nodes if n.generation == 2] == [spare]


def test_when_on_demand_is_refused_the_next_one_is_asked_for() -> None:
    tight = wanted(40.2)
    assert asked(a_view(of=tight), sold(refusals=(refused(FULL),))) == [OTHER.key]


def test_a_program_that_keeps_nothing_is_not_put_on_spot_with_a_deadline() -> None:
    nothing = wanted(200.0, checkpoint=CheckpointSpec("file:///ckpt", "none"))
    assert asked(a_view(of=nothing), sold()) == [FULL.key]


def test_a_gang_is_asked_for_and_moves_whole() -> None:
    gang = wanted(39.7, num_nodes=2)
    assert asked(a_view(of=gang), sold()) == [FULL.key] * 2
    ranks = [trains(CHEAP, rank=rank) for rank in (0, 1)]
    after, _ = settle(a_view(*ranks, of=gang), sold())
    assert {by_id(after, n).departure.leave_reason for n in ranks} == {LeaveReason.MOVED}
    assert [n.offer.key for n in after.nodes if n.generation == 2] == [FULL.key] * 2


def test_while_nothing_may_be_launched_nobody_moves() -> None:
    here = trains(FULL)
    after, _ = settle(a_view(here, of=wanted(200.0)), sold(blocked="2 nodes of at most 2"))
    assert by_id(after, here).state is NodeState.RUNNING


@pytest.mark.parametrize("hours", [0.0, 20.0, 39.7, 45.0, 60.0, 200.0])
@pytest.mark.parametrize("here", [None, CHEAP, FULL])
@pytest.mark.parametrize("out", [(), (CHEAP,), (FULL, OTHER), (CHEAP, FULL, OTHER)])
def test_deciding_again_changes_nothing(
    hours: float, here: Offer | None, out: tuple[Offer, ...]
) -> None:
    nodes = (trains(here),) if here else ()
    market_ = sold(refusals=tuple(refused(one) for one in out))
    after, _ = settle(a_view(*nodes, of=wanted(hours)), market_)
    again, _ = settle(after, market_)
    assert [(n.id, n.state, n.departure.leave_reason) for n in again.nodes] == [
        (n.id, n.state, n.departure.leave_reason) for n in after.nodes
    ]


def test_a_job_that_waits_is_never_forgotten() -> None:
    lone = job(spec=wanted(100.0))
    for out in ((CHEAP,), (CHEAP, FULL, OTHER)):
        market_ = sold(refusals=tuple(refused(one) for one in out))
        _, plan = settle(View(lone, (), (), loaded_at_us=NOW), market_)
        assert plan.wake_at_us > NOW


# --- what is said, and what is left as it was


THERE = offer("gcp-1a", 2.0, list_microusd_per_h=40_000_000)


def test_a_move_says_where_to_and_at_which_price() -> None:
    after, plan = settle(a_view(trains(FULL)), sold(FULL, THERE))
    [left] = [node for node in after.nodes if node.departure.leave_reason is LeaveReason.MOVED]
    assert left.departure.leave_text.endswith(f": {THERE.key} at $2.00/h")
    [event] = [one for one in plan.events if one.kind == "moves"]
    why = left.departure.leave_text
    assert event.text == (
        f"node g1 in aws/aws-1a moves ({why}); it keeps training until its replacement is ready"
    )
    assert event.node_id == left.id


def leaves(**fields: Any) -> Node:
    """A machine on demand that was to move, a minute ago."""
    said = {"leave_reason": LeaveReason.MOVED, "leave_text": "for spot", "left_at_us": NOW - 60 * S}
    return trains(FULL, **(said | {"drained_at_us": NOW - 60 * S} | fields))


def test_who_stays_leaves_nothing_of_the_move_behind() -> None:
    """What it was to move to is not to be had any more."""
    after, plan = settle(a_view(leaves()), sold(FULL))
    [stays] = after.nodes
    left = (
        stays.departure.leave_reason,
        stays.departure.leave_text,
        stays.departure.left_at_us,
        stays.departure.drained_at_us,
    )
    assert (stays.state, left) == (NodeState.RUNNING, (None, "", 0, 0))
    [event] = [one for one in plan.events if one.kind == "stays"]
    assert event.text == "node g1 in aws/aws-1a stays: nothing better is available now"
    assert event.node_id == stays.id


def test_who_has_its_replacement_on_the_way_does_not_stay() -> None:
    coming = hello(generation=2, offer=THERE)
    after, plan = settle(a_view(leaves(), coming), sold(FULL))
    assert after.nodes[0].state is NodeState.DRAINING
    assert "stays" not in kinds(plan)


def test_on_demand_is_looked_at_again_for_spot_each_five_minutes() -> None:
    _, plan = settle(a_view(trains(FULL)), sold(FULL))
    assert plan.wake_at_us == NOW + 300 * S


@pytest.mark.parametrize(
    "replacement",
    [
        {"state": NodeState.BOOTING, "cloud_state": "terminated"},
        {"state": NodeState.TERMINATING, "chosen": True, "leave_reason": LeaveReason.PREEMPTED},
    ],
    ids=["not up yet", "chosen"],
)
def test_whose_replacement_is_taken_away_stays_in_the_same_pass(
    replacement: dict[str, Any],
) -> None:
    """That its place is out is on record only after it: until the next pass it would drain for
    nobody."""
    before, market_ = a_move((), deadline_h=42.0)
    seen = {"cloud_state": "terminated", "left_at_us": NOW - S} | replacement
    lost = node(generation=2, offer=CHEAP, gone_at_us=NOW, **seen)
    after, plan = settle(a_view(*before.nodes, lost, of=wanted(42.0)), market_)
    assert (after.nodes[0].state, len(after.nodes)) == (NodeState.RUNNING, 2)
    assert "stays" in kinds(plan)
