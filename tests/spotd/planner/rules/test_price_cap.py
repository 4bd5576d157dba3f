"""A machine above the job's cap is left for a cheaper one, when that pays and not before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from providers.base import Scope
from spotd.domain.events import Event, Severity
from spotd.domain.fast_replace import changed
from spotd.domain.job import CheckpointSpec, Desired
from spotd.domain.market import Market, Refusal
from spotd.domain.node import EffectKind, Node
from spotd.domain.states import LeaveReason, NodeState, Outcome
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.planner.offers.price_sanity import ASSUMED, DOUBTED
from tests.spotd.planner.build import (
    NOW,
    by_id,
    head,
    hello,
    kinds,
    market,
    node,
    notice,
    offer,
    settle,
    spec,
    view,
)

CAP = 20_000_000
CHEAP = offer("gcp-1a", 10)


def dear(price: float = 30.0, trained_s: float = 3600.0, **fields: Any) -> Node:
    """It trains, at a price that was another one when it was asked for; it took 300 s to start."""
    step_us = NOW - int(trained_s * S)
    times = {"requested_at_us": step_us - 300 * S, "first_step_at_us": step_us}
    state = fields.pop("state", NodeState.RUNNING)
    return node(state, offer=offer("aws-1a", price), **(times | fields))


def job(**fields: Any) -> dict[str, Any]:
    return {"spec": spec(max_hourly_microusd=CAP, stop_grace_s=60.0, **fields)}


def seen(one: Node, **more: Any) -> View:
    return view(one, job=job() | more)


PLACES = market(offers=(offer("aws-1a", 30), CHEAP))


def test_it_trains_on_and_the_cheaper_one_is_asked_for_in_the_same_pass() -> None:
    one = dear()
    after, plan = settle(seen(one), PLACES)
    left = by_id(after, one)
    why = "$30.00/h is above max_hourly_cost, and gcp/gcp-1/gcp-1a/8xh100/spot costs $10.00/h"
    assert left == changed(
        one,
        state=NodeState.DRAINING,
        leave_reason=LeaveReason.OUTBID,
        leave_text=why,
        left_at_us=NOW,
        drained_at_us=NOW,
    ), "it trains on until the cheaper one is ready"
    (new,) = [found for found in after.nodes if found.id != one.id]
    assert (new.offer, new.call.effect) == (CHEAP, EffectKind.LAUNCH)
    (event,) = [found for found in plan.events if found.kind == "outbid"]
    words = f"node g1 in aws/aws-1a moves: {why}; it keeps training until its replacement is ready"
    assert event == Event("outbid", words, one.id, Severity.WARNING, alert=True, key="j0:outbid")
    ready = hello(generation=2, chosen=True, ready_at_us=NOW, started_at_us=NOW, offer=CHEAP)
    later, _ = settle(replace(after, nodes=(left, ready)), PLACES)
    assert by_id(later, left).call.effect is EffectKind.RELEASE


def test_it_moves_when_that_has_paid_and_not_before() -> None:
    """$20/h are saved; 300 s at $10/h and 60 s at $30/h are the price: 240 s of saving."""
    before, plan = settle(seen(dear(trained_s=239)), PLACES)
    assert before.nodes[0].state is NodeState.RUNNING
    assert plan.wake_at_us == NOW + S
    assert "node g1 in aws/aws-1a now costs $30.00/h: it moves when that pays off" in plan.reasons
    after, _ = settle(seen(dear(trained_s=240)), PLACES)
    assert after.nodes[0].state is NodeState.DRAINING


@pytest.mark.parametrize(
    ("one", "more", "places"),
    [
        (dear(price=20.0), {}, PLACES),
        (dear(), {"spec": spec()}, PLACES),
        (dear(), {"desired": Desired.PAUSE}, PLACES),
        (dear(), {}, market(offers=(offer("aws-1a", 30), offer("gcp-1a", 25)))),
        (dear(), {}, changed(PLACES, blocked="3 of 3 nodes are in use")),
        (dear(), job(checkpoint=CheckpointSpec("file:///c", engine="none")), PLACES),
    ],
    ids=["at the cap", "no cap", "paused", "nothing cheaper", "no room", "saves nothing"],
)
def test_it_stays(one: Node, more: dict[str, Any], places: Market) -> None:
    after, plan = settle(view(one, job=job() | more), places)
    assert by_id(after, one).departure.leave_reason is not LeaveReason.OUTBID
    assert "outbid" not in kinds(plan)


def test_where_nothing_below_the_cap_is_free_it_says_so() -> None:
    told = "node g1 in aws/aws-1a now costs $30.00/h, and no place below max_hourly_cost is free"
    for places in (market(offers=PLACES.offers[:1]), changed(PLACES, blocked="no room")):
        _, plan = settle(seen(dear()), places)
        assert told in plan.reasons


def test_it_does_not_move_to_where_it_was_slow_or_too_dear_before() -> None:
    left = Refusal(CHEAP.key, Scope.OFFER, "Outbid", NOW - S, "j0-g1-c0-r0")
    one = dear(generation=2)
    after, _ = settle(seen(one), replace(PLACES, refusals=(left,)))
    assert by_id(after, one).state is NodeState.RUNNING
    others = replace(left, node_id="j1-g1-c0-r0")
    after, _ = settle(seen(one), replace(PLACES, refusals=(others,)))
    assert by_id(after, one).departure.leave_reason is LeaveReason.OUTBID


KEPT = {"exit_code": 1, "exited_at_us": NOW - S, "kept_until_us": NOW + 60 * S}


@pytest.mark.parametrize(
    ("ones", "more"),
    [
        ([dear(**KEPT)], {"outcome": Outcome.FAILED, "outcome_text": "no more"}),
        (
            [
                dear(**KEPT),
                dear(
                    rank=1,
                    state=NodeState.DRAINING,
                    leave_reason=LeaveReason.CANCELLED,
                    drained_at_us=NOW - S,
                ),
            ],
            {"stop_text": "no more"} | job(num_nodes=2),
        ),
    ],
    ids=["ended", "ending"],
)
def test_one_that_its_user_looks_at_does_not_move(ones: list[Node], more: dict[str, Any]) -> None:
    after, plan = settle(view(*ones, job=job() | more), PLACES)
    assert after.nodes[0].state is NodeState.RUNNING
    assert "outbid" not in kinds(plan)


@pytest.mark.parametrize(
    "over",
    [{"exit_code": 0, "exited_at_us": NOW - S}, {"released_at_us": NOW - S}],
    ids=["ended", "released"],
)
def test_one_that_trains_no_more_does_not_move(over: dict[str, Any]) -> None:
    """Whether it has finished is to be read; an alert that it trains on would be wrong."""
    one = dear(**over)
    after, plan = settle(seen(one), PLACES)
    assert by_id(after, one).departure.leave_reason is not LeaveReason.OUTBID
    assert "outbid" not in kinds(plan)


def test_a_job_that_has_finished_moves_nobody() -> None:
    one = dear()
    after, plan = settle(seen(one, head=head(final=True)), PLACES)
    assert by_id(after, one).departure.leave_reason is LeaveReason.DONE
    assert "outbid" not in kinds(plan)


def test_one_that_leaves_already_does_not_move() -> None:
    one = dear(
        state=NodeState.DRAINING,
        leave_reason=LeaveReason.PREEMPTED,
        drained_at_us=NOW - S,
        notices=(notice(),),
    )
    after, plan = settle(seen(one), PLACES)
    assert by_id(after, one).departure.leave_reason is LeaveReason.PREEMPTED
    assert "outbid" not in kinds(plan)


@pytest.mark.parametrize("source", [ASSUMED, DOUBTED])
def test_it_stays_where_the_price_is_not_its_clouds_own_word(source: str) -> None:
    """A slip in a catalogue, or one that did not answer for an hour."""
    told = offer("aws-1a", 30, price_source=source)
    one = dear()
    after, _ = settle(seen(one), market(offers=(told, CHEAP)))
    assert by_id(after, one).state is NodeState.RUNNING


def test_a_gang_moves_together() -> None:
    ranks = [dear(rank=number) for number in (0, 1)]
    after, _ = settle(view(*ranks, job=job(num_nodes=2)), PLACES)
    left = [found for found in after.nodes if found.generation == 1]
    assert [found.state for found in left] == [NodeState.DRAINING] * 2
    assert [found.offer for found in after.nodes if found.generation == 2] == [CHEAP] * 2
