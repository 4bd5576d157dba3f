"""A machine that does not come up within eight minutes gets another beside it, in another place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spotd.domain.fast_replace import changed
from spotd.domain.market import Market, Timing
from spotd.domain.node import Node
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.domain.view import View
from tests.spotd.planner.build import NOW, OFFERS, by_id, kinds, market, node, settle, spec, view

SLOW_S = Timing().beside_s


def slow(ago_s: float = SLOW_S, **fields: Any) -> Node:
    state = fields.pop("state", NodeState.BOOTING)
    return node(state, **{"requested_at_us": NOW - int(ago_s * S), **fields})


def coming(after: View) -> list[Node]:
    unheard = (NodeState.LAUNCHING, NodeState.BOOTING)
    return [one for one in after.nodes if one.state in unheard]


def asked(before: View, said: Market | None = None, now: int = NOW) -> list[Node]:
    after, _ = settle(before, said, now)
    known = {one.id for one in before.nodes}
    return [one for one in coming(after) if one.id not in known]


@pytest.mark.req("RPV-02")
@pytest.mark.parametrize("state", [NodeState.LAUNCHING, NodeState.BOOTING])
def test_beyond_eight_minutes_the_next_candidate_is_asked_for(state: NodeState) -> None:
    """At 480 s and not before; it is looked at then, and the slow one may still be the first."""
    assert SLOW_S == 480
    early = view(slow(SLOW_S - 1, state=state))
    after, plan = settle(early)
    assert len(after.nodes) == 1
    assert plan.wake_at_us == NOW + S
    after, plan = settle(view(slow(state=state)))
    old, new = coming(after)
    assert new.offer != old.offer, "in another place"
    assert (new.generation, new.candidate) == (old.generation, 1)
    (event,) = (one for one in plan.events if one.kind == "requested")
    assert "in addition to one that is not up after 480 s" in event.text
    again, plan = settle(after)
    assert len(again.nodes) == 2, "once"
    assert "requested" not in kinds(plan)


@pytest.mark.req("RPV-02")
@pytest.mark.parametrize("first", [0, 1])
def test_who_says_hello_first_is_chosen(first: int) -> None:
    after, _ = settle(view(slow()))
    nodes = [
        changed(one, state=NodeState.BOOTING, instance_id=f"i{number}", launched_at_us=NOW)
        for number, one in enumerate(coming(after))
    ]
    nodes[first] = changed(nodes[first], hello_at_us=NOW, booted_at_us=NOW, heard_at_us=NOW)
    found, _ = settle(replace(after, nodes=tuple(nodes)))
    chosen, other = by_id(found, nodes[first]), by_id(found, nodes[1 - first])
    assert chosen.chosen
    assert (other.state, other.departure.leave_reason) == (
        NodeState.TERMINATING,
        LeaveReason.HEDGE_LOST,
    )


@pytest.mark.req("RPV-02")
def test_the_time_is_a_setting() -> None:
    said = market(timing=Timing(beside_s=60.0, lost_after_s=20.0))
    assert len(asked(view(slow(60)), said)) == 1
    assert asked(view(slow(59)), said) == []


def test_at_most_one_beside_each_that_was_asked_for() -> None:
    two = slow(SLOW_S + 300), slow(candidate=1, offer=OFFERS[1])
    assert asked(view(*two)) == []
    wide = {"job": {"spec": spec(candidates=2)}}
    assert len(asked(view(*two, **wide))) == 2
    assert len(asked(view(two[0], slow(5, candidate=1, offer=OFFERS[1]), **wide))) == 1


def test_what_could_not_be_heard_is_not_slow() -> None:
    """After an outage of ours, an agent has time to say that it is up."""
    before = view(slow(600))
    deaf = market(listening_since_us=NOW - 10 * S)
    assert asked(before, deaf) == []
    heard = market(listening_since_us=NOW - int(Timing().lost_after_s * S))
    assert len(asked(view(slow(600)), heard)) == 1


def test_where_nothing_else_is_to_be_had_it_is_waited_for() -> None:
    after, plan = settle(view(slow()), market(OFFERS[:1]))
    assert len(after.nodes) == 1
    assert any("no other place for a second one" in said for said in plan.reasons)
    assert after.job.queue.waiting_since_us == 0, "it waits for no market"


@pytest.mark.parametrize("said", [{"hedging": False}, {"blocked": "max_nodes is 1"}])
def test_where_a_limit_is_in_the_way_it_is_waited_for(said: dict[str, Any]) -> None:
    before = view(slow())
    assert asked(before, market(**said)) == []
    _, plan = settle(before, market(**said))
    assert "waiting for a machine to come up" in plan.reasons


def test_no_second_gang_is_asked_for_beside_one() -> None:
    gang = {"job": {"spec": spec(num_nodes=2)}}
    assert asked(view(slow(), slow(rank=1), **gang)) == []


def test_a_machine_that_is_up_and_sets_up_is_not_slow() -> None:
    up = {"hello_at_us": NOW - S, "booted_at_us": NOW - S, "chosen": True}
    assert asked(view(slow(**up))) == []
