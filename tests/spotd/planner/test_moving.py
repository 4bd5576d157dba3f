"""A machine that stays slow is left for another one, once in a while and never for nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from providers.base import NoticeKind, Scope
from spotd.domain.events import Event, Severity
from spotd.domain.fast_replace import changed
from spotd.domain.job import Attempt, Desired
from spotd.domain.market import Refusal
from spotd.domain.node import EffectKind, Node, NoticeRecord
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.planner.core.apply import apply_all
from spotd.planner.planner import decide
from spotd.planner.rules.slow_training import MOVE_EVERY_S
from tests.spotd.planner.build import (
    NOW,
    OFFERS,
    by_id,
    head,
    is_moved,
    kinds,
    market,
    node,
    settle,
    spec,
    view,
)
from tests.spotd.planner.core.test_slow_detection import GOOD, ROUND_S, SLOW, every

L, B, R, D, T, G = NodeState
TOLD = NOW - int(ROUND_S * S)
SAVED = {"save_wanted_at_us": TOLD, "head": head(seen_at_us=TOLD + S)}


def slow_view(*nodes: Node, throughput: Any = SLOW, **job: Any) -> View:
    return view(*(nodes or (node(R),)), throughput=throughput, job=SAVED | job)


def test_a_machine_that_stays_slow_is_replaced_while_it_trains_on() -> None:
    slow = node(R)
    after, plan = settle(slow_view(slow))
    left = by_id(after, slow)
    why = "below 60% of the job's own throughput for 240 s"
    assert left == changed(
        slow,
        state=D,
        leave_reason=LeaveReason.OUTBID,
        leave_text=why,
        left_at_us=NOW,
        drained_at_us=NOW,
    ), "it is not told to stop yet"
    (event,) = (event for event in plan.events if event.kind == "moved")
    words = f"node g1 in aws/aws-1a is {why}: it keeps training until its replacement is ready"
    assert event == Event("moved", words, slow.id, Severity.WARNING, alert=True, key="j0:moved")
    assert "slow" not in kinds(plan), "that was told before"
    (fresh,) = (n for n in after.nodes if n.generation == 2)
    assert fresh.offer == OFFERS[1], "not where the slow one is"
    later = decide(after, market(), NOW + 3600 * S)
    assert by_id(apply_all(after, later.changes), slow).state is D, "nor after an hour"
    assert decide(after, market(), NOW).changes == (), "and nothing more follows at once"


def test_it_is_released_when_its_replacement_is_ready() -> None:
    slow = node(D, leave_reason=LeaveReason.OUTBID, drained_at_us=NOW - 60 * S)
    seen = {"hello_at_us": NOW - S, "booted_at_us": NOW - 2 * S, "heard_at_us": NOW - S}
    ready = {"chosen": True, "started_at_us": NOW - S, "ready_at_us": NOW, "host": "127.0.0.1"}
    after, _ = settle(view(slow, node(B, generation=2, **seen, **ready)))
    assert by_id(after, slow).call.effect is EffectKind.RELEASE


def test_where_another_job_was_too_slow_is_a_place_like_any_other() -> None:
    other, mine = (
        Refusal(OFFERS[0].key, Scope.OFFER, "Outbid", NOW - S, f"{job}-g1-c0-r0")
        for job in ("j9", "j0")
    )
    one = market(offers=OFFERS[:1])
    after, _ = settle(view(), replace(one, refusals=(other,)))
    assert [n.offer for n in after.nodes] == [OFFERS[0]]
    after, _ = settle(view(), replace(one, refusals=(mine,)))
    assert not after.nodes, "nor does this one go back at once"


def test_a_gang_moves_together() -> None:
    gang = (node(R), node(R, rank=1))
    after, _ = settle(slow_view(*gang, spec=spec(num_nodes=2)))
    assert [by_id(after, n).departure.leave_reason for n in gang] == [LeaveReason.OUTBID] * 2


@pytest.mark.parametrize(
    "job",
    [
        {"save_wanted_at_us": 0},
        {"save_wanted_at_us": TOLD + S},  # the second round is not over
        {"save_wanted_at_us": NOW - int(2 * ROUND_S * S)},  # that was another time
        {"head": head(seen_at_us=TOLD)},  # nothing was saved since
        {"head": head(seen_at_us=NOW, generation=0)},
        {"head": None},
        {"stop_text": "over budget"},
        {"desired": Desired.PAUSE},
    ],
)
def test_not_before_it_was_told_saved_and_slow_again(job: dict[str, Any]) -> None:
    assert not is_moved(slow_view(**job))


@pytest.mark.parametrize(
    "over", [{"exit_code": 0, "exited_at_us": NOW - S}, {"released_at_us": NOW - S}]
)
def test_one_that_trains_no_more_does_not_move(over: dict[str, Any]) -> None:
    assert not is_moved(slow_view(node(R, **over)))
    gang = (node(R), node(R, rank=1, **over))
    assert not is_moved(slow_view(*gang, spec=spec(num_nodes=2)))


def test_a_job_that_has_finished_moves_nobody() -> None:
    assert not is_moved(slow_view(head=head(final=True, seen_at_us=TOLD + S)))


def test_one_that_its_user_looks_at_does_not_move() -> None:
    failed = {"exit_code": 1, "exited_at_us": NOW - S, "kept_until_us": NOW + 60 * S}
    mate = node(D, rank=1, leave_reason=LeaveReason.CANCELLED, drained_at_us=NOW - S)
    assert not is_moved(slow_view(node(R, **failed), mate, stop_text="no more"))


def test_one_that_recovered_stays() -> None:
    assert not is_moved(slow_view(throughput=[*GOOD, *every(10, 119, 0, 100.0)]))


def test_one_that_is_silent_stays() -> None:
    """It evaluates, or hangs: its agent knows."""
    assert not is_moved(slow_view(throughput=GOOD))


def test_a_slow_machine_is_kept_when_no_other_is_to_be_had() -> None:
    assert not is_moved(slow_view(), offers=OFFERS[:1])
    assert not is_moved(slow_view(), blocked="the limit of nodes is reached")
    assert is_moved(slow_view(), offers=OFFERS[:2])
    left = Refusal(OFFERS[1].key, Scope.OFFER, "Outbid", NOW - S, "j0-g1-c0-r0")
    assert not is_moved(slow_view(), offers=OFFERS[:2], refusals=(left,)), "slow there as well"


@pytest.mark.parametrize(("ago_s", "moves"), [(MOVE_EVERY_S - 1, False), (MOVE_EVERY_S, True)])
def test_it_moves_once_in_two_hours(ago_s: float, moves: bool) -> None:
    before = slow_view(node(R, generation=2), head=head(seen_at_us=NOW, generation=2))
    when = NOW - int(ago_s * S)
    moved = (before.attempts[0], Attempt("j0", 2, when, LeaveReason.OUTBID.value))
    assert is_moved(replace(before, attempts=moved)) is moves


def test_a_notice_that_is_taken_back_does_not_end_the_move() -> None:
    taken_back = NoticeRecord("n1", NoticeKind.PREEMPT, NOW - S, NOW + 60 * S, withdrawn=True)
    slow = node(D, leave_reason=LeaveReason.OUTBID, notices=(taken_back,), drained_at_us=NOW - S)
    after, _ = settle(view(slow))
    assert by_id(after, slow).state is D


def test_a_cancelled_job_stops_on_the_slow_machine() -> None:
    slow = node(D, leave_reason=LeaveReason.OUTBID, drained_at_us=NOW - 600 * S)
    after, _ = settle(view(slow, job={"desired": Desired.CANCEL}))
    assert by_id(after, slow).call.effect is EffectKind.DRAIN
    assert by_id(after, slow).departure.drained_at_us == NOW, "its grace begins now"
