"""What follows from the verdicts that are decided upon."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spotd.domain.fast_replace import changed
from spotd.domain.health import NAN, STRAGGLER, Diagnosis
from spotd.domain.job import Attempt
from spotd.domain.states import LeaveReason, NodeState, Outcome
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.planner.core.plan_builder import PlanBuilder
from spotd.planner.core.slow_detection import WARM_UP_US
from spotd.planner.planner import decide
from spotd.planner.rules.slow_training import MOVE_EVERY_S, save_when_slow
from tests.spotd.planner.build import (
    JOB,
    NOW,
    by_id,
    head,
    is_moved,
    kinds,
    market,
    node,
    settle,
    view,
)
from tests.spotd.planner.core.test_slow_detection import GOOD, ROUND_S, every

L, B, R, D, T, G = NodeState
TOLD = NOW - int(ROUND_S * S)
SAVED = {"save_wanted_at_us": TOLD, "head": head(seen_at_us=TOLD + S)}
STEADY = (*GOOD, *every(10, 119, 0, 100.0))
WARM = NOW - WARM_UP_US - int(ROUND_S * S)


def told(kind: str, ago_s: float = 5.0, node_id: str = "j0-g1-c0-r0") -> tuple[Diagnosis, ...]:
    return (Diagnosis(kind, NOW - int(ago_s * S), node_id),)


# --- one rank for which the others wait


def test_a_straggler_is_saved_from_and_then_left() -> None:
    slow = node(R)
    first = view(slow, throughput=STEADY, verdicts=told(STRAGGLER))
    after, plan = settle(first)
    assert after.job.progress.save_wanted_at_us == NOW
    (event,) = (event for event in plan.events if event.kind == "slow")
    assert event.text == "held up by one of its ranks for 120 s; saving"
    again = view(slow, throughput=STEADY, verdicts=told(STRAGGLER), job=SAVED)
    after, plan = settle(again)
    left = by_id(after, slow)
    assert (left.state, left.departure.leave_reason) == (D, LeaveReason.OUTBID)
    assert left.departure.leave_text == "held up by one of its ranks for 240 s"
    assert after.job.backoff.failures == 0


@pytest.mark.parametrize(
    "verdicts",
    [
        (),
        told(STRAGGLER, ROUND_S),  # over
        told(STRAGGLER, node_id="j0-g0-c0-r0"),  # of a machine before
        told("loss_spike"),
    ],
)
def test_nothing_follows_from_others(verdicts: tuple[Diagnosis, ...]) -> None:
    assert not is_moved(view(node(R), throughput=STEADY, verdicts=verdicts, job=SAVED))


@pytest.mark.parametrize(("ago_s", "expected"), [(MOVE_EVERY_S - 1, False), (MOVE_EVERY_S, True)])
def test_one_that_straggles_on_another_machine_too_is_let_be(
    ago_s: float, *, expected: bool
) -> None:
    """Neither saved from, again and again, nor left: for the two hours between moves."""
    attempts = (Attempt(JOB, 1, NOW - int(ago_s * S), "outbid"),)
    held_up = view(node(R), throughput=STEADY, verdicts=told(STRAGGLER), attempts=attempts)
    assert ("slow" in kinds(settle(held_up)[1])) is expected


# --- a machine that is slower than the one before of its type


def slower(typical: float, first_step_at_us: int = WARM, **job: Any) -> View:
    """It does 100 tokens/s, steadily."""
    running = node(R, first_step_at_us=first_step_at_us)
    return view(running, throughput=STEADY, typical_tokens_per_s=typical, job=job)


@pytest.mark.parametrize(("typical", "expected"), [(0.0, False), (166.0, False), (167.0, True)])
def test_it_is_measured_by_what_its_type_did_before(typical: float, *, expected: bool) -> None:
    assert is_moved(slower(typical, **SAVED)) is expected
    after, plan = settle(slower(typical))
    assert ("slow" in kinds(plan)) is expected
    assert (after.job.progress.save_wanted_at_us == NOW) is expected


def test_not_before_it_is_warm_and_then_at_once() -> None:
    plan = decide(slower(1000.0, WARM + 1), market(), NOW)
    assert "slow" not in kinds(plan)
    assert plan.wake_at_us == NOW + 1
    assert decide(slower(0.0, WARM + 1), market(), NOW).wake_at_us != NOW + 1
    _, plan = settle(slower(1000.0))
    why = "below 60% of its earlier rate on this type of machine for 120 s; saving"
    assert [event.text for event in plan.events if event.kind == "slow"] == [why]
    alone = PlanBuilder(slower(1000.0), market(), NOW)
    save_when_slow(alone)
    woken_us = alone.plan().wake_at_us
    assert woken_us == NOW + int(ROUND_S * S), "no duty looks at it by this measure"


# --- losses that are not numbers


def test_a_job_whose_losses_are_no_numbers_stops_for_a_person() -> None:
    lost = view(node(R), throughput=STEADY, verdicts=told(NAN))
    after, _ = settle(lost)
    assert after.job.end.stop_text == ("training has diverged: its losses are no longer finite")
    (left,) = after.nodes
    assert (left.state, left.departure.leave_reason) == (D, LeaveReason.CANCELLED), "saved first"
    assert after.job.backoff.failures == 0
    gone = replace(after, nodes=(changed(left, state=G, gone_at_us=NOW),))
    ended, _ = settle(gone)
    assert ended.job.outcome is Outcome.FAILED


@pytest.mark.parametrize(
    "before",
    [
        view(node(R), verdicts=told(NAN, node_id="j0-g0-c0-r0")),
        view(node(R), verdicts=told("nan_after_resume")),
        view(node(D), verdicts=told(NAN)),
        view(node(R), verdicts=told(NAN), job={"outcome": Outcome.SUCCEEDED}),
    ],
)
def test_it_does_not_where_that_says_nothing_of_what_trains(before: View) -> None:
    after, _ = settle(before)
    assert "diverged" not in after.job.end.stop_text


def test_why_it_stops_already_is_kept() -> None:
    after, _ = settle(view(node(R), verdicts=told(NAN), job={"stop_text": "over budget"}))
    assert after.job.end.stop_text == "over budget"
