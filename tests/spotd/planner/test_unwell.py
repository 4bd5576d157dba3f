"""A program that hangs is charged like one that crashes, and its offer cools; a GPU that fails is
nobody's fault, and its machine is replaced at once."""

from __future__ import annotations

import pytest

from spotd.domain.fast_replace import changed
from spotd.domain.states import LeaveReason, NodeState, Outcome
from spotd.domain.units import S
from spotd.planner.offers.cooldowns import BASE_S, cooldown_until_us, refusal_of, spoiled_places
from spotd.wire import EXIT_DIVERGED, EXIT_HUNG, EXIT_UNFIT
from tests.spotd.planner.build import JOB, NOW, OFFERS, by_id, kinds, node, settle, spec, view

L, B, R, D, T, G = NodeState
HUNG = {"exit_code": EXIT_HUNG, "exited_at_us": NOW}
UNFIT = {"exit_code": EXIT_UNFIT, "exited_at_us": NOW}


def test_a_machine_whose_gpu_fails_is_replaced_at_once_and_uncharged() -> None:
    broken = node(R, **UNFIT)
    after, _ = settle(view(broken, job={"failures": 3}))
    left = by_id(after, broken)
    assert (left.state, left.departure.leave_reason, left.departure.leave_text) == (
        T,
        LeaveReason.LOST,
        "its GPU has failed",
    )
    assert (after.job.backoff.failures, after.job.backoff.place_after_us, after.job.outcome) == (
        3,
        0,
        None,
    )
    (fresh,) = (n for n in after.nodes if n.generation == 2)
    assert fresh.offer == OFFERS[1], "not from where the broken one came"


@pytest.mark.parametrize("state", [B, R, D])
def test_a_gpu_may_fail_before_a_step_and_during_a_drain(state: NodeState) -> None:
    chosen = {"chosen": True, "hello_at_us": NOW - S, "booted_at_us": NOW - S}
    reason = LeaveReason.PREEMPTED if state is D else None
    broken = node(state, **{**chosen, **UNFIT}, leave_reason=reason)
    after, plan = settle(view(broken, job={"first_step_at_us": 0}))
    assert by_id(after, broken).state is T
    assert by_id(after, broken).departure.leave_reason is (reason or LeaveReason.LOST)
    assert after.job.outcome is None
    assert "crashed" not in kinds(plan)


@pytest.mark.parametrize(("trained", "tail"), [(True, "Xid 79"), (False, ""), (True, "")])
def test_of_one_that_trained_or_says_nothing_its_gpu_is_to_blame(trained: bool, tail: str) -> None:
    first_us = NOW - S if trained else 0
    unfit = {**UNFIT, "exit_tail": tail, "first_step_at_us": first_us, "chosen": True}
    broken = node(B, booted_at_us=NOW - S, hello_at_us=NOW - S, **unfit)
    after, _ = settle(view(broken, job={"first_step_at_us": first_us}))
    assert by_id(after, broken).departure.leave_text == "its GPU has failed"


def test_of_a_machine_that_came_up_unwell_it_is_told_what_is_wrong() -> None:
    """As its own preparation has said it, which its agent hands on; nobody is charged for it."""
    wrong = "nvidia-smi shows 7 of 8 GPUs"
    unfit = {**UNFIT, "exit_tail": wrong, "first_step_at_us": 0}
    broken = node(B, chosen=True, booted_at_us=NOW - S, hello_at_us=NOW - S, **unfit)
    before = view(broken, job={"first_step_at_us": 0})
    after, plan = settle(before)
    left = by_id(after, broken)
    assert (left.state, left.departure.leave_reason) == (T, LeaveReason.LOST)
    assert left.departure.leave_text == f"not fit to train on: {wrong}"
    assert any(wrong in e.text for e in plan.events if e.kind == "node_leaving")
    assert (after.job.backoff.failures, after.job.outcome, after.job.backoff.place_after_us) == (
        0,
        None,
        0,
    )
    (fresh,) = (n for n in after.nodes if n.generation == 2)
    assert fresh.offer == OFFERS[1], "its offer cools"


def test_a_program_that_hangs_on_its_machine_again_is_charged() -> None:
    hung = node(R, **HUNG)
    after, plan = settle(view(hung))
    assert (by_id(after, hung).state, by_id(after, hung).departure.leave_reason) == (
        T,
        LeaveReason.FAILED,
    )
    assert after.job.backoff.failures == 1
    assert after.job.backoff.place_after_us > NOW
    (told,) = (event for event in plan.events if event.kind == "crashed")
    assert told.text.startswith("the program hung, and was ended on node g1")
    assert told.alert


def test_a_program_that_always_hangs_ends_its_job() -> None:
    budget = {"failures": 3, "spec": spec(max_restarts_on_errors=3)}
    after, _ = settle(view(node(R, **HUNG), job=budget))
    assert after.job.outcome is Outcome.FAILED
    assert "hung" in after.job.end.outcome_text


@pytest.mark.parametrize(
    ("code", "reason", "said"),
    [
        (EXIT_HUNG, LeaveReason.FAILED, "Hung"),
        (EXIT_UNFIT, LeaveReason.LOST, "Unfit"),
        (EXIT_UNFIT, LeaveReason.PREEMPTED, "Unfit"),
    ],
)
def test_its_offer_cools_for_long(code: int, reason: LeaveReason, said: str) -> None:
    left = node(G, exit_code=code, leave_reason=reason, gone_at_us=NOW)
    refusal = refusal_of(left)
    assert refusal is not None
    assert refusal.code == said
    until_us, why = cooldown_until_us(left.offer, spoiled_places([refusal], JOB), 60.0)
    assert (until_us, why) == (NOW + int(BASE_S[said] * S), said)
    assert refusal_of(changed(left, leave_reason=None)) is None, "it has not left yet"


def test_training_that_diverged_for_good_is_not_tried_again() -> None:
    diverged = node(R, exit_code=EXIT_DIVERGED, exited_at_us=NOW)
    after, plan = settle(view(diverged))
    assert (by_id(after, diverged).state, by_id(after, diverged).departure.leave_text) == (
        T,
        "training diverged",
    )
    assert after.job.outcome is Outcome.FAILED
    assert after.job.end.outcome_text == "training diverged: no finite loss after going back"
    assert "failed" in kinds(plan), "and its user is told"


def test_after_a_crash_any_offer_is_good() -> None:
    crashed = node(G, exit_code=1, leave_reason=LeaveReason.FAILED, gone_at_us=NOW)
    assert refusal_of(crashed) is None
