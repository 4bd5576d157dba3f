"""What a change does to a view, and what it may not do."""

from __future__ import annotations

import pytest

from spotd.domain.job import Attempt, Job
from spotd.domain.node import Node
from spotd.domain.plan import (
    JOB_DECISIONS,
    NODE_DECISIONS,
    AddNode,
    ChangeJob,
    ChangeNode,
    OpenAttempt,
    Plan,
)
from spotd.domain.states import TRANSITIONS, IllegalTransitionError, LeaveReason, NodeState, Outcome
from spotd.planner.core.apply import apply, apply_all
from spotd.wire.parts import field_names
from tests.spotd.planner.build import JOB, NOW, node, view

L, B, R, D, T, G = NodeState
ONE = node(R)
OTHER = node(B, generation=2)


def test_a_change_of_the_job_leaves_the_rest_alone() -> None:
    before = view(ONE)
    after = apply(before, ChangeJob({"outcome": Outcome.FAILED, "outcome_text": "x"}))
    assert (after.job.outcome, after.job.end.outcome_text) == (Outcome.FAILED, "x")
    assert after.nodes == before.nodes
    assert before.job.outcome is None, "values are never changed in place"


def test_a_change_of_a_node_leaves_the_others_alone() -> None:
    after = apply(view(ONE, OTHER), ChangeNode(ONE.id, {"state": D}))
    assert [n.state for n in after.nodes] == [D, B]
    assert after.nodes[1] is OTHER


def test_what_is_new_comes_last() -> None:
    attempt = Attempt(JOB, 2, NOW, "preempted")
    after = apply_all(view(ONE), [OpenAttempt(attempt), AddNode(OTHER)])
    assert after.attempts[-1] == attempt
    assert after.nodes == (ONE, OTHER)


def test_changes_are_applied_in_order() -> None:
    steps = [ChangeNode(ONE.id, {"state": state}) for state in (D, T, G)]
    assert apply_all(view(ONE), steps).nodes[0].state is G


@pytest.mark.parametrize("old", NodeState)
@pytest.mark.parametrize("new", NodeState)
def test_only_the_tables_transitions_are_legal(old: NodeState, new: NodeState) -> None:
    before = view(node(old))
    change = ChangeNode(before.nodes[0].id, {"state": new})
    if new in TRANSITIONS[old] or new is old:
        assert apply(before, change).nodes[0].state is new
    else:
        with pytest.raises(IllegalTransitionError, match=f"{old.value} to {new.value}"):
            apply(before, change)


@pytest.mark.parametrize("name", sorted({*field_names(Node)} - NODE_DECISIONS))
def test_a_decision_cannot_set_what_is_observed_of_a_node(name: str) -> None:
    with pytest.raises(ValueError, match=f"do not own {name}"):
        apply(view(ONE), ChangeNode(ONE.id, {name: None}))


@pytest.mark.parametrize("name", sorted({*field_names(Job)} - JOB_DECISIONS))
def test_a_decision_cannot_set_what_is_observed_of_a_job(name: str) -> None:
    with pytest.raises(ValueError, match=f"do not own {name}"):
        apply(view(ONE), ChangeJob({name: None}))


def test_all_that_is_not_ours_is_named() -> None:
    with pytest.raises(ValueError, match=r"do not own host, port$"):
        apply(view(ONE), ChangeNode(ONE.id, {"port": 1, "host": ""}))


@pytest.mark.parametrize("name", ["outcom", "states"])
def test_a_column_that_does_not_exist_is_a_bug(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        apply(view(ONE), ChangeJob({name: 1}))


def test_a_node_that_is_not_there_is_a_bug() -> None:
    with pytest.raises(ValueError, match="no node j9"):
        apply(view(ONE), ChangeNode("j9", {"state": T}))


def test_every_column_that_decisions_own_exists() -> None:
    assert {*field_names(Node)} >= NODE_DECISIONS
    assert {*field_names(Job)} >= JOB_DECISIONS


def test_a_plan_knows_which_nodes_it_arms() -> None:
    changes = (
        AddNode(OTHER),
        ChangeNode(OTHER.id, {"effect": None, "effect_armed_at_us": NOW}),
        ChangeNode(ONE.id, {"state": T, "leave_reason": LeaveReason.DONE}),
        ChangeJob({"wake_at_us": 1}),
    )
    assert Plan(changes, (), 0, "because").armed == {OTHER.id}
