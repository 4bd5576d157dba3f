"""How long a machine that is leaving has: to save, to speak, or for its user to look at it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spotd.domain.fast_replace import changed
from spotd.domain.job import Desired
from spotd.domain.node import EffectKind, Node
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.domain.view import Throughput
from spotd.planner.rules.replace_node import RELEASE_TRIES, START_S
from spotd.wire import OUTPUTS_LIMIT_S
from tests.spotd.planner.build import (
    NOW,
    OFFERS,
    by_id,
    hello,
    kinds,
    market,
    node,
    notice,
    settle,
    spec,
    view,
)

L, B, R, D, T, G = NodeState
PREEMPTED, CANCELLED = LeaveReason.PREEMPTED, LeaveReason.CANCELLED
GRACE_S = 30.0 + 10.0  # stop_grace_s and drain_margin_s


def seconds(count: float) -> int:
    return int(count * S)


def draining(**fields: Any) -> Node:
    """It trains on since its notice of a minute ago."""
    seen = {"leave_reason": PREEMPTED, "drained_at_us": NOW - 60 * S, "notices": (notice(60.0),)}
    return node(D, **(seen | fields))


@pytest.mark.parametrize(
    "stop", [{"desired": Desired.PAUSE}, {"desired": Desired.CANCEL}, {"stop_text": "too dear"}]
)
def test_a_stop_during_a_notice_leaves_time_to_save(stop: dict[str, Any]) -> None:
    old = draining()
    after, plan = settle(view(old, job=stop))
    stopped = by_id(after, old)
    assert (stopped.state, stopped.call.effect) == (D, EffectKind.DRAIN)
    assert stopped.departure.leave_reason is CANCELLED
    assert "draining" in kinds(plan)
    late = NOW + seconds(GRACE_S)
    told = changed(stopped, told_drain_at_us=NOW, heard_at_us=late)
    after, plan = settle(replace(after, nodes=(told,)), now=late - 1)
    assert by_id(after, old).state is D
    assert plan.wake_at_us == late
    after, _ = settle(after, now=late)
    assert by_id(after, old).state is T


def test_a_stop_during_a_notice_does_not_outlast_the_machine() -> None:
    old = draining(notices=(notice(5.0),))
    after, plan = settle(view(old, job={"desired": Desired.PAUSE}))
    assert by_id(after, old).state is D
    assert plan.wake_at_us <= NOW + 15 * S
    after, _ = settle(after, now=NOW + 15 * S)
    assert by_id(after, old).state is T


def test_a_notice_without_a_deadline_leaves_the_grace_to_save() -> None:
    running = node(R, notices=(notice(deadline_us=None, heard_at_us=NOW),))
    after, _ = settle(view(running))
    late = NOW + seconds(GRACE_S)
    after, _ = settle(after, now=late - 1)
    assert by_id(after, running).state is D, "it saves"
    after, _ = settle(after, now=late)
    assert by_id(after, running).state is T
    assert by_id(after, running).departure.leave_reason is PREEMPTED


def test_a_notice_that_ran_out_while_nobody_looked_is_told_and_done_with_at_once() -> None:
    running = node(R, notices=(notice(-10.0),))
    after, plan = settle(view(running))
    assert by_id(after, running).state is T
    assert by_id(after, running).departure.leave_reason is PREEMPTED
    assert {"notice", "node_leaving"} <= set(kinds(plan))


def test_a_drain_has_its_limit_also_when_the_job_was_resumed() -> None:
    paused = node(D, leave_reason=CANCELLED, drained_at_us=NOW, told_drain_at_us=NOW)
    paused = changed(paused, heard_at_us=NOW + seconds(GRACE_S))
    after, plan = settle(view(paused))
    assert by_id(after, paused).state is D
    assert plan.wake_at_us <= NOW + seconds(GRACE_S)
    after, _ = settle(after, now=NOW + seconds(GRACE_S))
    assert by_id(after, paused).state is T


def test_a_pause_waits_for_outputs_as_long_as_they_are_uploaded() -> None:
    began_us = NOW + 5 * S
    paused = node(D, leave_reason=CANCELLED, drained_at_us=NOW, told_drain_at_us=NOW)
    later = NOW + seconds(GRACE_S) + 60 * S
    paused = changed(paused, heard_at_us=later, outputs_since_us=began_us)
    after, plan = settle(view(paused), now=later)
    assert by_id(after, paused).state is D, "its grace is over, but it uploads"
    end_us = began_us + seconds(OUTPUTS_LIMIT_S + 10.0)
    assert plan.wake_at_us <= end_us
    heard = changed(by_id(after, paused), heard_at_us=end_us)
    after, _ = settle(replace(after, nodes=(heard,)), now=end_us)
    assert by_id(after, paused).state is T
    assert by_id(after, paused).departure.leave_text.endswith("outputs were not stored in time")


def test_no_outputs_keep_a_machine_beyond_its_notice() -> None:
    paused = node(D, leave_reason=CANCELLED, drained_at_us=NOW, told_drain_at_us=NOW)
    left = {"outputs_since_us": NOW, "notices": (notice(5.0),), "heard_at_us": NOW + 15 * S}
    after, _ = settle(view(changed(paused, **left)), now=NOW + 15 * S)
    assert by_id(after, paused).state is T


def test_a_chosen_machine_that_cannot_be_started_is_replaced() -> None:
    """Its link is well: nobody else would ever give it up."""
    refused = {"effect": EffectKind.START, "effect_error": "LinkError: no space left"}
    deaf = hello(chosen=True, hello_at_us=NOW, heard_at_us=NOW + seconds(START_S), **refused)
    after, plan = settle(view(deaf), now=NOW + seconds(START_S) - 1)
    assert by_id(after, deaf).state is B
    assert plan.wake_at_us <= NOW + seconds(START_S)
    after, plan = settle(after, now=NOW + seconds(START_S))
    assert by_id(after, deaf).departure.leave_reason is LeaveReason.BOOT_TIMEOUT
    (told,) = [event for event in plan.events if event.kind == "start_failed"]
    assert told.alert
    assert "no space left" in told.text
    assert [n.generation for n in after.nodes] == [1, 2]


def test_a_gang_is_chosen_and_has_its_time_to_start_when_its_last_rank_said_hello() -> None:
    early = hello(chosen=True, hello_at_us=NOW - seconds(START_S), heard_at_us=NOW)
    late = hello(rank=1, chosen=True, hello_at_us=NOW, heard_at_us=NOW)
    after, _ = settle(view(early, late, job={"spec": spec(num_nodes=2)}))
    assert [n.state for n in after.nodes] == [B, B]


def survivor(**fields: Any) -> tuple[Node, Node]:
    """It trains on: its notice was withdrawn, and with it the replacement, a new attempt."""
    withdrawn = (notice(withdrawn=True),)
    replacement = node(T, generation=2, leave_reason=LeaveReason.HEDGE_LOST)
    return node(R, notices=withdrawn, **fields), replacement


def test_the_crash_of_a_machine_whose_notice_was_withdrawn_is_charged() -> None:
    crashed, replacement = survivor(exit_code=1, exited_at_us=NOW)
    after, plan = settle(view(crashed, replacement))
    assert after.job.backoff.failures == 1
    assert "crashed" in kinds(plan)
    chosen = hello(generation=2, chosen=True, offer=OFFERS[1])
    old = draining(exit_code=1, exited_at_us=NOW)
    after, _ = settle(view(old, chosen))
    assert after.job.backoff.failures == 0, "its replacement had taken over"


def test_the_health_of_a_machine_whose_notice_was_withdrawn_is_watched() -> None:
    running, replacement = survivor()
    rates = [(-300 + 30 * at, 1000) for at in range(6)] + [(-110 + 30 * at, 100) for at in range(4)]
    reports = tuple(Throughput(1, NOW + at * S, 1, tokens, 1.0) for at, tokens in rates)
    after, plan = settle(view(running, replacement, throughput=reports))
    assert after.job.progress.save_wanted_at_us == NOW
    assert "slow" in kinds(plan)


@pytest.mark.parametrize(("failures", "state"), [(RELEASE_TRIES - 1, D), (RELEASE_TRIES, T)])
def test_a_rank_that_refuses_to_release_does_not_stay(failures: int, state: NodeState) -> None:
    """Its mate has left, and it cannot train without."""
    refused = {"effect": EffectKind.RELEASE, "effect_armed_at_us": NOW - S}
    refused |= {"effect_failed_at_us": NOW, "effect_failures": failures}
    last = node(D, leave_reason=PREEMPTED, drained_at_us=NOW - 100 * S, **refused)
    mate = node(T, rank=1, leave_reason=PREEMPTED, exit_code=75, exited_at_us=NOW)
    replacement = node(L, generation=2, offer=OFFERS[1])
    after, _ = settle(view(last, mate, replacement, job={"spec": spec(num_nodes=2)}))
    assert by_id(after, last).state is state


def test_a_failed_rank_is_kept_for_its_user_when_its_mates_leave() -> None:
    crashed = node(R, exit_code=1, exited_at_us=NOW - 15 * S)
    mate = node(R, rank=1)
    kept = spec(num_nodes=2, max_restarts_on_errors=0, keep_on_failure_s=600.0)
    after, _ = settle(view(crashed, mate, job={"spec": kept}))
    assert by_id(after, mate).state is D, "it saves"
    for later_s in (1.0, 60.0, 120.0, 599.0):
        after, _ = settle(after, now=NOW + seconds(later_s))
    assert by_id(after, mate).state is T
    assert by_id(after, crashed).state is R
    after, _ = settle(after, now=NOW + seconds(600.0))
    assert by_id(after, crashed).state is T


def test_a_failed_rank_that_was_draining_is_kept_as_well() -> None:
    paused = {"notices": (), "leave_reason": CANCELLED, "drained_at_us": NOW - 16 * S}
    crashed = draining(exit_code=1, exited_at_us=NOW - 15 * S, **paused)
    mate = draining(rank=1, **paused)
    kept = spec(num_nodes=2, max_restarts_on_errors=0, keep_on_failure_s=600.0)
    after, _ = settle(view(crashed, mate, job={"spec": kept}))
    for later_s in (1.0, 60.0, 120.0, 599.0):
        after, _ = settle(after, now=NOW + seconds(later_s))
    assert [by_id(after, member).state for member in (crashed, mate)] == [D, T]


# --- a machine whose words nobody heard is not late


@pytest.mark.parametrize(
    "seen",
    [
        {"started_at_us": NOW - seconds(4000.0)},  # setup_timeout_s is 3600
        {"chosen": False, "hello_at_us": 0, "heard_at_us": 0, "requested_at_us": NOW - 1000 * S},
    ],
    ids=["setup", "boot"],
)
def test_a_machine_that_nobody_listened_to_has_time_to_say_that_it_is_up(
    seen: dict[str, Any],
) -> None:
    quiet = {"chosen": True, "hello_at_us": NOW - 4100 * S, "booted_at_us": NOW - 4200 * S}
    silent = hello(**(quiet | {"heard_at_us": NOW - 4000 * S} | seen))
    back = market(listening_since_us=NOW)
    after, plan = settle(view(silent), back)
    assert by_id(after, silent).state is B
    assert plan.wake_at_us <= NOW + 120 * S
    spoke = changed(silent, heard_at_us=NOW + 119 * S if silent.agent.heard_at_us else 0)
    after, _ = settle(view(spoke), back, now=NOW + 120 * S)
    assert by_id(after, silent).departure.leave_reason is LeaveReason.BOOT_TIMEOUT, (
        "but no more than that"
    )


DOWN = market(listening_since_us=NOW - 900 * S, reached_since_us={"aws": NOW})


def test_a_node_behind_a_jump_host_that_is_down_is_kept_and_looked_at() -> None:
    silent = node(R, heard_at_us=NOW - 900 * S, link_down_at_us=NOW - 890 * S)
    after, plan = settle(view(silent), DOWN)
    assert by_id(after, silent).state is R
    assert by_id(after, silent).call.effect is EffectKind.SURVEY, (
        "its cloud may say that it is gone"
    )
    assert "cannot be reached: the jump host does not respond" in plan.reason
    assert plan.wake_at_us == NOW + 5 * S
    assert kinds(plan) == [], "fifty nodes behind it are told once, and not here"


def test_a_node_behind_a_jump_host_that_is_down_hides_no_lost_one() -> None:
    silent = {"heard_at_us": NOW - 200 * S, "surveyed_at_us": NOW - S}
    kept = node(D, leave_reason=PREEMPTED, link_down_at_us=NOW - 190 * S, **silent)
    lost = node(R, generation=2, claimed_at_us=0, offer=OFFERS[2], **silent)
    after, _ = settle(view(kept, lost), DOWN)
    assert by_id(after, kept).state is D
    assert by_id(after, lost).departure.leave_reason is LeaveReason.LOST


def test_a_machine_that_comes_up_behind_a_jump_host_that_is_down_is_waited_for() -> None:
    tried = {"effect_failed_at_us": NOW - S, "effect_failures": 9, "effect": EffectKind.BOOT}
    new = node(B, host="h", instance_id="i-1", requested_at_us=NOW - 1000 * S, **tried)
    after, plan = settle(view(new), DOWN)
    assert by_id(after, new).state is B
    assert plan.wake_at_us <= NOW + 120 * S
    back = market(listening_since_us=NOW - 900 * S, reached_since_us={"aws": NOW - 119 * S})
    after, _ = settle(view(new), back)
    assert by_id(after, new).state is B, "it could not be reached before"
    back = market(listening_since_us=NOW - 900 * S, reached_since_us={"aws": NOW - 120 * S})
    after, _ = settle(view(new), back)
    assert by_id(after, new).departure.leave_reason is LeaveReason.BOOT_TIMEOUT
    ours = market(listening_since_us=NOW - 15 * S, reached_since_us={"aws": NOW})
    often = changed(new, effect_failures=12)
    after, _ = settle(view(often), ours)
    assert by_id(after, new).departure.leave_reason is LeaveReason.BOOT_TIMEOUT, (
        "a daemon that just began"
    )
    whole = market(listening_since_us=NOW - 9000 * S, reached_since_us={"aws": NOW - 8000 * S})
    after, _ = settle(view(new), whole)
    assert by_id(after, new).departure.leave_reason is LeaveReason.BOOT_TIMEOUT


def test_a_chosen_machine_is_not_late_for_a_start_that_could_not_get_there() -> None:
    seen = {"hello_at_us": NOW - 4100 * S, "booted_at_us": NOW - 4200 * S, "heard_at_us": NOW}
    waiting = hello(chosen=True, **seen)
    after, _ = settle(view(waiting), DOWN)
    assert (by_id(after, waiting).state, by_id(after, waiting).call.effect) == (B, EffectKind.START)
    away = market(listening_since_us=NOW - 9000 * S, reached_since_us={"aws": NOW - 9000 * S})
    after, _ = settle(view(waiting), away)
    assert by_id(after, waiting).departure.leave_reason is LeaveReason.BOOT_TIMEOUT


def test_a_chosen_machine_is_not_late_for_a_start_that_nobody_sent() -> None:
    seen = {"hello_at_us": NOW - 4100 * S, "booted_at_us": NOW - 4200 * S, "heard_at_us": NOW}
    waiting = hello(chosen=True, **seen)
    back = market(listening_since_us=NOW)
    after, _ = settle(view(waiting), back)
    assert (by_id(after, waiting).state, by_id(after, waiting).call.effect) == (B, EffectKind.START)
    late = NOW + seconds(START_S)
    heard = changed(waiting, heard_at_us=late)
    after, _ = settle(view(heard), back, now=late - 1)
    assert by_id(after, waiting).state is B
    after, _ = settle(view(heard), back, now=late)
    assert by_id(after, waiting).departure.leave_reason is LeaveReason.BOOT_TIMEOUT


def test_a_machine_whose_time_to_boot_ran_out_while_nobody_was_there_is_tried_first() -> None:
    """It may train: a database that was restored has it on record as it once was."""
    old = node(B, host="h", instance_id="i-1", requested_at_us=NOW - 7200 * S)
    back = market(listening_since_us=NOW)
    after, plan = settle(view(old), back)
    assert (by_id(after, old).state, by_id(after, old).call.effect) == (B, EffectKind.BOOT)
    assert plan.wake_at_us <= NOW + 120 * S
    after, _ = settle(view(old), back, now=NOW + 120 * S)
    assert by_id(after, old).departure.leave_reason is LeaveReason.BOOT_TIMEOUT
    tried = changed(old, effect_failed_at_us=NOW - S, effect_failures=11)
    after, _ = settle(view(tried), back)
    assert by_id(after, tried).state is B, "SSH was slow once; it may train for all we know"
    tried = changed(old, effect_failed_at_us=NOW - S, effect_failures=12)
    after, _ = settle(view(tried), back)
    assert by_id(after, tried).departure.leave_reason is LeaveReason.BOOT_TIMEOUT, (
        "by others, that died"
    )
    waited = replace(old, requested_at_us=NOW - 899 * S)
    after, _ = settle(view(waited), back, now=NOW + S)
    assert by_id(after, waited).departure.leave_reason is LeaveReason.BOOT_TIMEOUT, "we were there"


def test_a_machine_that_is_silent_during_setup_is_judged_by_its_silence() -> None:
    """It may have done its setup: its time for that ran out while its link was down."""
    seen = {"started_at_us": NOW - 3599 * S, "hello_at_us": NOW - 3600 * S}
    silent = hello(chosen=True, link_down_at_us=NOW - 5 * S, heard_at_us=NOW - 5 * S, **seen)
    after, plan = settle(view(silent), now=NOW + 2 * S)
    assert by_id(after, silent).state is B
    assert plan.wake_at_us > 0
    asked = changed(silent, surveyed_at_us=NOW + 115 * S)
    after, _ = settle(view(asked), now=NOW + 115 * S)
    assert by_id(after, silent).departure.leave_reason is LeaveReason.LOST
