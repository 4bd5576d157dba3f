"""Who of a gang is left, and who comes in place of those that are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spotd.domain.fast_replace import changed
from spotd.domain.job import Desired
from spotd.domain.node import Node
from spotd.domain.on_node_loss import Elastic, OnNodeLoss
from spotd.domain.phase import RUNNING, phase
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.planner.core.gangs import (
    GATHER_S,
    crew,
    joining,
    mate_released,
    newcomers,
    remaining,
    size_of,
    taken_on_us,
)
from tests.spotd.planner.build import NOW, hello, node, notice, spec, view

B, R = NodeState.BOOTING, NodeState.RUNNING
D, T, G = NodeState.DRAINING, NodeState.TERMINATING, NodeState.GONE


def three(**elastic: Any) -> dict[str, Any]:
    """The spec of three machines that go on with fewer."""
    return {"spec": spec(num_nodes=3, elastic=Elastic(OnNodeLoss.SHRINK, **elastic))}


def ranks(nodes: list[Node]) -> list[int]:
    return [n.rank for n in nodes]


def gang(*states: NodeState, **fields: Any) -> list[Node]:
    return [node(state, rank=rank, **fields) for rank, state in enumerate(states)]


def comer(rank: int = 2, **fields: Any) -> Node:
    """On its way to the gang of attempt 1."""
    return hello(rank=rank, candidate=rank, **fields)


def seen(*nodes: Node, **fields: Any) -> View:
    return view(*nodes, job=three() | fields)


def test_those_that_go_on_are_set_up_and_stay_with_us() -> None:
    first, second, third = gang(R, R, R)
    assert ranks(remaining(seen(first, second, third), NOW)) == [0, 1, 2]
    for gone in (
        changed(third, state=T, leave_reason=LeaveReason.LOST),
        replace(third, notices=(notice(),)),
        changed(third, state=D, leave_reason=LeaveReason.OUTBID),
        changed(third, state=D, leave_reason=LeaveReason.CANCELLED),
        changed(third, kept_until_us=NOW + S),
        changed(third, state=B, first_step_at_us=0),
    ):
        assert ranks(remaining(seen(second, gone, first), NOW)) == [0, 1], gone
    for here in (
        changed(third, state=D, leave_reason=LeaveReason.PREEMPTED, leave_text="rank 0 goes"),
        changed(third, state=D, leave_reason=LeaveReason.OUTBID, gang_size=2),
        replace(third, state=B, moved_at_us=NOW - S),
        changed(third, kept_until_us=NOW),
        replace(third, notices=(notice(withdrawn=True),)),
    ):
        assert ranks(remaining(seen(first, second, here), NOW)) == [0, 1, 2], here


@pytest.mark.parametrize(
    "fields",
    [
        {"spec": spec(num_nodes=3)},
        {"spec": spec(num_nodes=1, elastic=Elastic(OnNodeLoss.SHRINK))},
        three(min_nodes=3),
        {"desired": Desired.PAUSE},
        {"stop_text": "a limit"},
        {"generation": 2},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_nobody_goes_on_where_the_job_does_not(fields: dict[str, Any]) -> None:
    two = gang(R, R)
    lost = node(T, rank=2, chosen=True, leave_reason=LeaveReason.LOST)
    assert ranks(remaining(seen(*two, lost), NOW)) == [0, 1]
    assert remaining(seen(*two, lost, **fields), NOW) == []


def test_nobody_goes_on_from_a_gang_that_has_finished() -> None:
    two = gang(R, R)
    assert remaining(seen(two[0], changed(two[1], exit_code=0)), NOW) == []
    assert ranks(remaining(seen(two[0], changed(two[1], exit_code=75)), NOW)) == [0, 1]


def test_the_crew_is_of_the_newest_attempt_if_it_has_chosen() -> None:
    old, new = node(D), [node(R, generation=2, rank=1), node(R, generation=2)]
    assert ranks(crew(seen(old, *new))) == [0, 1]
    assert crew(seen(old, hello(generation=2))) == []


def test_newcomers_have_no_rank_yet_and_somebody_to_join() -> None:
    two, one = gang(R, R), comer()
    late = node(NodeState.LAUNCHING, rank=2, candidate=3)
    assert newcomers(seen(*two, one, late)) == [one, late]
    assert newcomers(seen(*two, replace(one, state=T), replace(late, chosen=True))) == []
    assert newcomers(seen(one)) == [], "a candidate of an attempt that has chosen nobody"
    assert newcomers(view(*two, one, job={"spec": spec(num_nodes=3)})) == []


def test_those_that_are_ready_join_together() -> None:
    first, early = gang(R), comer(1, ready_at_us=NOW - int(GATHER_S * S))
    fresh, coming = comer(1, ready_at_us=NOW - S), comer()
    assert joining(seen(*first, fresh), NOW) == [fresh]
    assert joining(seen(*first, fresh, coming), NOW) == []
    assert joining(seen(*first, early, coming), NOW) == [early], "it has waited long enough"
    assert joining(seen(*first, early, coming), NOW - 1) == []
    assert joining(seen(*first, replace(fresh, notices=(notice(),))), NOW) == []
    assert joining(seen(fresh), NOW) == []


def test_no_more_join_than_are_missing() -> None:
    ready = {"ready_at_us": NOW - S}
    two, comers = gang(R, R), [comer(2, **ready), comer(3, **ready)]
    assert joining(seen(*two, *comers), NOW) == comers[:1]


def test_a_gang_is_as_large_as_its_attempt_was_begun() -> None:
    assert size_of(node(R), spec(num_nodes=3)) == 3
    assert size_of(node(R, gang_size=2), spec(num_nodes=3)) == 2
    assert not mate_released(node(D, gang_size=1), seen(node(D, gang_size=1)))
    assert mate_released(node(D), seen(node(D))), "two of its three are gone"


def test_a_moved_machine_is_as_old_as_its_move() -> None:
    assert taken_on_us(node(R)) == node(R).requested_at_us
    assert taken_on_us(node(R, moved_at_us=NOW)) == NOW


def test_a_gang_that_trains_with_fewer_is_running() -> None:
    two = [replace(n, gang_size=2) for n in gang(R, R)]
    job = seen(*two).job
    assert phase(job, two) == RUNNING
    assert phase(job, gang(R, R)) != RUNNING
    assert phase(job, two[:1]) != RUNNING
