"""A machine whose disk stays full is left for another one, and nobody goes round for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spotd.domain.events import Severity
from spotd.domain.fast_replace import changed
from spotd.domain.job import Attempt, CheckpointSpec, Desired
from spotd.domain.node import EffectKind, Node
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.planner.core.apply import apply_all
from spotd.planner.offers.cooldowns import refusal_of, spoiled_places
from spotd.planner.planner import decide
from spotd.planner.rules.disk_full import LOOK_AGAIN_S
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

L, B, R, D, T, G = NodeState
FULL = {"disk_full_at_us": NOW - S}


def test_a_machine_whose_disk_stays_full_is_replaced_while_it_trains_on() -> None:
    full = node(R, **FULL)
    after, plan = settle(view(full, job={"failures": 3}))
    left = by_id(after, full)
    assert (left.state, left.departure.leave_reason, left.departure.leave_text) == (
        D,
        LeaveReason.OUTBID,
        "the disk of node g1 in aws/aws-1a stays full",
    )
    assert left.call.effect is not EffectKind.DRAIN, "it is not told to stop yet"
    (event,) = (event for event in plan.events if event.kind == "moved")
    assert (event.alert, event.severity, event.node_id) == (True, Severity.WARNING, full.id)
    assert event.text == (
        f"{left.departure.leave_text}: it keeps training until its replacement is ready"
    )
    assert (after.job.backoff.failures, after.job.backoff.place_after_us, after.job.outcome) == (
        3,
        0,
        None,
    )
    (fresh,) = (n for n in after.nodes if n.generation == 2)
    assert fresh.offer == OFFERS[1], "not where the full one is"
    later = decide(after, market(), NOW + 3600 * S)
    assert by_id(apply_all(after, later.changes), full).state is D, "nor after an hour"
    assert decide(after, market(), NOW).changes == (), "and nothing more follows at once"


def test_it_is_released_when_its_replacement_is_ready_and_nothing_is_lost() -> None:
    full = node(D, leave_reason=LeaveReason.OUTBID, drained_at_us=NOW - 60 * S, **FULL)
    seen = {"hello_at_us": NOW - S, "booted_at_us": NOW - 2 * S, "heard_at_us": NOW - S}
    ready = {"chosen": True, "started_at_us": NOW - S, "ready_at_us": NOW, "host": "127.0.0.1"}
    fresh = node(B, generation=2, offer=OFFERS[1], **seen, **ready)
    after, _ = settle(view(full, fresh))
    assert by_id(after, full).call.effect is EffectKind.RELEASE
    released = changed(full, exit_code=75, exited_at_us=NOW, released_at_us=NOW)
    after, plan = settle(view(released, fresh, job={"head": head(released=True)}))
    assert (by_id(after, full).state, after.job.backoff.failures) == (T, 0)
    assert "crashed" not in kinds(plan)


def test_its_offer_is_a_place_like_any_other_to_others() -> None:
    full = node(D, leave_reason=LeaveReason.OUTBID, left_at_us=NOW, **FULL)
    refusal = refusal_of(full)
    assert refusal is not None
    assert spoiled_places([refusal], "j9") == {}
    assert OFFERS[0].key in spoiled_places([refusal], "j0"), "it does not go back at once"


def test_a_gang_moves_together() -> None:
    gang = (node(R), node(R, rank=1, **FULL))
    after, plan = settle(view(*gang, job={"spec": spec(num_nodes=2)}))
    assert [by_id(after, n).departure.leave_reason for n in gang] == [LeaveReason.OUTBID] * 2
    assert [by_id(after, n).state for n in gang] == [D, D]
    assert kinds(plan).count("moved") == 1


@pytest.mark.parametrize(
    "job",
    [
        {"stop_text": "over budget"},
        {"desired": Desired.PAUSE},
        {"desired": Desired.CANCEL},
    ],
)
def test_who_stops_anyway_is_not_moved(job: dict[str, Any]) -> None:
    assert not is_moved(view(node(R, **FULL), job=job))


def test_a_program_that_may_lose_by_it_is_not_moved() -> None:
    script = spec(checkpoint=CheckpointSpec(store="file:///ckpt", engine="none"))
    before = view(node(R, **FULL), job={"spec": script})
    assert not is_moved(before)
    _, plan = settle(before)
    assert plan.reason == (
        "the disk of node g1 in aws/aws-1a stays full, "
        "and its program does not save on request: it is not moved"
    )


@pytest.mark.parametrize(
    "over", [{"exit_code": 0, "exited_at_us": NOW - S}, {"released_at_us": NOW - S}]
)
def test_one_that_trains_no_more_does_not_move(over: dict[str, Any]) -> None:
    assert not is_moved(view(node(R, **FULL, **over)))
    gang = (node(R, **FULL), node(R, rank=1, **over))
    assert not is_moved(view(*gang, job={"spec": spec(num_nodes=2)}))


def test_a_job_that_has_finished_moves_nobody() -> None:
    assert not is_moved(view(node(R, **FULL), job={"head": head(final=True)}))


def test_nobody_is_moved_without_a_word() -> None:
    assert not is_moved(view(node(R)))


def test_one_that_is_not_trained_on_yet_is_moved_when_it_is() -> None:
    seen = {"chosen": True, "hello_at_us": NOW - S, "booted_at_us": NOW - S, "heard_at_us": NOW}
    coming = node(B, started_at_us=NOW, host="127.0.0.1", **seen, **FULL)
    assert not is_moved(view(coming, job={"first_step_at_us": 0}))
    assert is_moved(view(changed(coming, first_step_at_us=NOW)))


def test_it_is_kept_until_there_is_another_place() -> None:
    before = view(node(R, **FULL))
    assert not is_moved(before, offers=OFFERS[:1])
    assert not is_moved(before, blocked="the limit of nodes is reached")
    after, plan = settle(before, market(offers=OFFERS[:1]))
    assert plan.reason == "the disk of node g1 in aws/aws-1a stays full, and no other place is free"
    assert plan.wake_at_us == NOW + int(LOOK_AGAIN_S * S)
    assert is_moved(after, offers=OFFERS[:2])


def moved_here(ago_s: float, said_ago_s: float = 0.0) -> View:
    """Moved so long before its new disk was said to be full."""
    said_us = NOW - int(said_ago_s * S)
    old = {"requested_at_us": said_us - 10 * S, "first_step_at_us": said_us - 5 * S}
    before = view(node(R, generation=2, disk_full_at_us=said_us, **old))
    move = Attempt("j0", 2, said_us - int(ago_s * S), LeaveReason.OUTBID.value)
    return replace(before, attempts=(before.attempts[0], move))


@pytest.mark.parametrize(("ago_s", "moves"), [(MOVE_EVERY_S - 1, False), (MOVE_EVERY_S, True)])
def test_a_job_that_fills_each_disk_is_not_moved_for_ever(ago_s: float, moves: bool) -> None:
    assert is_moved(moved_here(ago_s)) is moves


def test_one_that_was_kept_stays_however_long() -> None:
    """A word about a new disk that came too soon tells of the job, tomorrow as today."""
    before = moved_here(600.0, said_ago_s=24 * 3600.0)
    assert not is_moved(before)
    _, plan = settle(before)
    (said,) = (reason for reason in plan.reasons if "stays full" in reason)
    assert said.endswith("soon after the job moved there: it is not moved again")


def test_a_machine_without_a_word_of_it_after_a_preemption_is_no_move() -> None:
    before = moved_here(600.0)
    taken = Attempt("j0", 2, before.attempts[1].opened_at_us, LeaveReason.PREEMPTED.value)
    assert is_moved(replace(before, attempts=(before.attempts[0], taken)))


def test_room_again_comes_too_late_for_one_that_is_left() -> None:
    going: Node = node(D, leave_reason=LeaveReason.OUTBID, drained_at_us=NOW - S, left_at_us=NOW)
    after, _ = settle(view(going))
    assert by_id(after, going).state is D
