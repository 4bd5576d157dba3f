"""What a gang misses is asked for beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from providers.base import Scope
from spotd.domain.market import Market, Refusal
from spotd.domain.node import Node
from spotd.domain.node_history import Prerequisite
from spotd.domain.on_node_loss import Elastic, OnNodeLoss
from spotd.domain.states import LeaveReason, NodeState, Outcome
from spotd.domain.units import S
from spotd.domain.view import View
from tests.spotd.planner.build import (
    NOW,
    OFFERS,
    kinds,
    market,
    node,
    notice,
    offer,
    settle,
    spec,
    view,
)

L, R, T = NodeState.LAUNCHING, NodeState.RUNNING, NodeState.TERMINATING
SHRINK = Elastic(OnNodeLoss.SHRINK)
NEAR = offer("aws-1b", 11, region="aws-1")
HERE = offer("aws-1a", 10, region="aws-1")


def left(rank: int = 0, state: NodeState = R, **fields: Any) -> Node:
    begun = {"gang_size": 1, "moved_at_us": NOW - 100 * S, "chosen": True}
    return node(state, rank=rank, offer=HERE, generation=2, **(begun | fields))


def asked(before: View, sold: Market) -> list[Node]:
    after, _ = settle(before, sold)
    known = {n.id for n in before.nodes}
    return [n for n in after.nodes if n.id not in known and not n.moved_at_us]


def job(num_nodes: int = 2, **fields: Any) -> dict[str, Any]:
    return {"spec": spec(num_nodes=num_nodes, elastic=SHRINK, **fields)}


def test_each_that_is_missing_is_asked_for_by_itself() -> None:
    sold = market((HERE, NEAR, offer("aws-1c", 12, region="aws-1")))
    found = asked(view(left(), job=job(3)), sold)
    assert [(n.rank, n.candidate, n.generation) for n in found] == [(1, 1, 2), (2, 2, 2)]
    assert not any(n.chosen for n in found)
    assert {n.offer.zone for n in found} == {"aws-1a", "aws-1b"}, "not the same one twice"
    assert len({n.token for n in found}) == 2
    one = node(L, generation=2, rank=1, candidate=1, offer=NEAR)
    assert len(asked(view(left(), one, job=job(3)), sold)) == 1
    assert asked(view(left(), one, job=job(2)), sold) == []


@pytest.mark.parametrize(
    "other",
    [
        offer("gcp-1a", 1),
        offer("aws-2a", 1),
        offer("aws-1b", 1, region="aws-1", instance_type="4xh100"),
        offer("aws-1b", 1, region="aws-1", interconnect="efa"),
    ],
    ids=["cloud", "region", "type", "network"],
)
def test_only_machines_like_its_own_in_the_same_network(other: Any) -> None:
    assert asked(view(left(), job=job()), market((other,))) == []
    assert asked(view(left(), job=job()), market((other, NEAR)))[0].offer == NEAR


@pytest.mark.req("ELA-08")
def test_a_fast_network_is_of_one_place() -> None:
    fast = {"interconnect": "efa", "region": "aws-1"}
    mine = node(R, offer=offer("aws-1a", 10, **fast), generation=2, gang_size=1)
    there, here = offer("aws-1b", 1, **fast), offer("aws-1a", 9, **fast)
    quick = job(fast_network=True)
    assert asked(view(mine, job=quick), market((there,))) == []
    assert asked(view(mine, job=quick), market((there, here)))[0].offer == here
    assert asked(view(mine, job=job()), market((there,)))[0].offer == there


def test_a_notice_asks_in_the_same_pass_and_not_for_what_is_taken_away() -> None:
    going = node(R, rank=1, offer=HERE, notices=(notice(),))
    before = view(node(R, offer=HERE), going, job=job())
    assert [n.offer for n in asked(before, market((HERE, NEAR)))] == [NEAR]
    assert asked(before, market((HERE,))) == []


def test_nothing_is_asked_for_where_nothing_may_be() -> None:
    sold = market((NEAR,))
    assert asked(view(left(), job=job()), sold)
    assert asked(view(left(), job=job()), market((NEAR,), blocked="full")) == []
    assert asked(view(left(), job=job()), market((NEAR,), safe_until_us=NOW + S)) == []
    ending = job(max_duration_s=65.0)  # created 60 s ago
    assert asked(view(left(), job=ending), sold) == []
    assert asked(view(left(exit_code=0, exited_at_us=NOW), job=job()), sold) == []
    whole = [node(R, rank=rank, offer=HERE) for rank in (0, 1)]
    assert asked(view(*whole, job=job()), sold) == []


def test_the_longest_time_of_one_that_comes_after_another_begins_with_that_ones_end() -> None:
    late = job(max_duration_s=3600.0, after="jfirst") | {"created_at_us": NOW - 9000 * S}
    for ago_s, asks in ((1000, True), (3590, False)):
        before = Prerequisite("search", Outcome.SUCCEEDED, "", NOW - ago_s * S)
        assert bool(asked(view(left(), job=late, before=before), market((NEAR,)))) is asks


def test_nobody_is_asked_for_before_the_last_stop_has_paid() -> None:
    """It took 60 s to begin; so long it takes one to come, too."""
    sold, begun = market((NEAR,)), {"moved_at_us": NOW - 100 * S}
    assert asked(view(left(**begun), job=job(2)), sold), "one stands for one"
    three = [left(rank, **begun) for rank in range(3)]
    before = view(*[replace(n, gang_size=3) for n in three], job=job(4))
    assert asked(before, sold) == []
    _, plan = settle(before, sold)
    assert plan.wake_at_us == NOW - 40 * S + 120 * S, "three stand for one"
    assert "3 of 4 machines, others are requested when that pays off" in plan.reasons


def test_nobody_is_asked_for_by_a_gang_that_has_not_begun() -> None:
    fresh = left(state=NodeState.BOOTING, first_step_at_us=0)
    assert asked(view(fresh, job=job()), market((NEAR,))) == []


def test_those_that_stand_ask_at_once() -> None:
    """Of `wait-then-shrink`, whether a program has ended or hangs."""
    waits = {"spec": spec(num_nodes=2, elastic=Elastic(OnNodeLoss.WAIT_THEN_SHRINK, 1, 60.0))}
    young = {"first_step_at_us": NOW - S, "gang_size": 0, "moved_at_us": NOW - 900 * S}
    gone = node(T, generation=2, rank=1, chosen=True, leave_reason=LeaveReason.LOST, left_at_us=NOW)
    assert asked(view(left(**young), gone, job=waits), market((NEAR,)))
    assert asked(view(left(**young), job=waits), market((NEAR,))) == []


def test_what_is_said_counts_machines() -> None:
    _, plan = settle(view(left(), job=job()), market((NEAR,)))
    assert "1 of 2 machines, 1 on the way" in plan.reasons
    assert "requested" in kinds(plan)
    _, plan = settle(view(left(), job=job()), market(()))
    assert "1 of 2 machines, no other machine is available now" in plan.reasons
    assert plan.wake_at_us <= NOW + 60 * S
    _, plan = settle(view(left(), job=job()), market((NEAR,), blocked="full"))
    assert any(text.endswith(", full") for text in plan.reasons)


def test_with_nobody_left_a_whole_gang_is_asked_for() -> None:
    gone = node(T, rank=0, chosen=True, leave_reason=LeaveReason.LOST, offer=HERE)
    found = asked(view(gone, job=job()), market(OFFERS))
    assert [(n.generation, n.rank) for n in found] == [(2, 0), (2, 1)]


def test_what_is_told_of_one_that_is_asked_for() -> None:
    _, plan = settle(view(left(), job=job()), market((NEAR,)))
    words = next(event.text for event in plan.events if event.kind == "requested")
    assert words == f"requested {NEAR.key} at $11.00/h, to join the 1 remaining"


def test_what_cools_is_asked_for_when_it_is_back() -> None:
    cool = Refusal(NEAR.key, Scope.OFFER, "CapacityError", NOW - S, "n")
    _, plan = settle(view(left(), job=job()), market((NEAR,), refusals=(cool,)))
    assert plan.wake_at_us == NOW + 59 * S
    after, _ = settle(view(left(), job=job()), market((NEAR, HERE), refusals=(cool,)))
    assert [n.offer for n in after.nodes if not n.chosen] == [HERE]
