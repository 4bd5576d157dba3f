"""Which call a node needs next, and when it may be made: tables over what is on record."""

from __future__ import annotations

from typing import Any

import pytest

from providers.base import NoticeKind
from spotd.domain.fast_replace import changed
from spotd.domain.market import Timing
from spotd.domain.node import EffectKind, Node
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.planner.core.next_effect import (
    CALL_DEADLINE_S,
    LAUNCH_S,
    claim_for,
    cut_off,
    due_at_us,
    last_start_us,
    lost_at_us,
    may_write,
    need,
    release_deadline_us,
    suspect,
)
from tests.spotd.planner.build import (
    NOW,
    OFFERS,
    head,
    hello,
    market,
    node,
    notice,
    settle,
    spec,
    view,
)

K = EffectKind
L, B, R, D, T, G = NodeState
PREEMPTED, CANCELLED = LeaveReason.PREEMPTED, LeaveReason.CANCELLED
CHOSEN = {"chosen": True}
QUIET = {"heard_at_us": NOW - 20 * S}  # for longer than suspect_after_s
STARTED = {"started_at_us": NOW, "started_claim": "after_release"}


def needed(one: Node, *others: Node, now: int = NOW, **job: Any) -> EffectKind | None:
    return need(one, view(one, *others, job=job), market(), now)


def minutes_ago(count: float) -> int:
    return NOW - int(count * 60 * S)


# --- one node by itself, state by state


@pytest.mark.parametrize(
    ("state", "seen", "expected"),
    [
        (L, {}, K.LAUNCH),
        (L, {"instance_id": "i-1"}, None),
        (L, {"launch_error": "none left"}, None),
        (B, {}, K.SURVEY),  # where is it?
        (B, {"host": "h"}, K.BOOT),
        (B, {"host": "h", "cloud_state": "pending", "surveyed_at_us": NOW - 4 * S}, K.BOOT),
        (B, {"host": "h", "cloud_state": "pending", "surveyed_at_us": NOW - 5 * S}, K.SURVEY),
        (B, {"host": "h", "cloud_state": "running", "surveyed_at_us": NOW - 9 * S}, K.BOOT),
        (B, {"host": "h", "booted_at_us": NOW}, None),  # the agent says hello by itself
        (B, {"host": "h", "booted_at_us": NOW, "hello_at_us": NOW}, None),  # not chosen
        (R, {}, None),
        (R, {"link_down_at_us": NOW}, K.SURVEY),
        (R, QUIET, K.SURVEY),
        (R, QUIET | {"surveyed_at_us": NOW - S, "cloud_state": "running"}, K.BOOT),
        (R, QUIET | {"surveyed_at_us": NOW - S, "cloud_state": "stopping"}, None),
        (R, QUIET | {"surveyed_at_us": NOW - 5 * S, "cloud_state": "running"}, K.SURVEY),
        (R, QUIET | {"exit_code": 1, "exited_at_us": NOW}, None),  # it said its last word
        (R, QUIET | {"setup_failed": True}, None),
        (R, {"exit_code": 0, "exited_at_us": NOW}, K.READ_HEAD),
        (D, {"leave_reason": CANCELLED}, K.DRAIN),
        (D, {"leave_reason": CANCELLED, "told_drain_at_us": NOW}, None),
        (D, {"leave_reason": PREEMPTED}, None),  # it keeps training until its replacement is ready
        (D, {"leave_reason": CANCELLED, "released_at_us": NOW}, None),
        (D, {"leave_reason": CANCELLED, "exit_code": 75}, None),
        (D, {"leave_reason": CANCELLED, "exit_code": 0, "exited_at_us": NOW}, K.READ_HEAD),
        (D, {"leave_reason": CANCELLED, "link_down_at_us": NOW}, K.SURVEY),
        (T, {}, K.TERMINATE),
        (T, {"terminated_at_us": NOW}, None),
        (T, {"terminated_at_us": NOW - S}, K.SURVEY),  # the first look comes soon
        (T, {"terminated_at_us": NOW - 9 * S, "surveyed_at_us": NOW - S}, None),
        (T, {"terminated_at_us": NOW - 9 * S, "surveyed_at_us": NOW - 5 * S}, K.SURVEY),
        (T, {"terminated_at_us": NOW - 60 * S, "surveyed_at_us": NOW}, K.TERMINATE),
        (T, {"instance_id": ""}, K.RESOLVE),
        (T, {"instance_id": "", "launch_error": "none left"}, K.RESOLVE),  # in doubt
        (T, {"instance_id": "", "gone_at_us": NOW}, None),
        (G, {}, None),
    ],
)
def test_one_node(state: NodeState, seen: dict[str, Any], expected: EffectKind | None) -> None:
    assert needed(node(state, **seen)) is expected


def test_a_lookup_by_token_is_paced_by_itself_alone() -> None:
    """However often others have the cloud listed: only this call can say "absent"."""
    unknown = node(T, instance_id="", surveyed_at_us=NOW)
    assert needed(unknown) is K.RESOLVE
    asked = changed(unknown, effect=K.RESOLVE, effect_armed_at_us=NOW - 3 * S)
    assert needed(asked) is None
    assert needed(asked, now=NOW + 2 * S) is K.RESOLVE
    assert due_at_us(unknown, view(unknown), market(), K.RESOLVE, NOW) == NOW


# --- silence


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ({}, False),
        ({"heard_at_us": NOW - 15 * S}, False),
        ({"heard_at_us": NOW - 15 * S - 1}, True),
        ({"link_down_at_us": 1}, True),
        ({"link_down_at_us": 1, "exit_code": 0}, False),
        ({"link_down_at_us": 1, "setup_failed": True}, False),
        ({"link_down_at_us": 1, "booted_at_us": 0}, False),
        ({"heard_at_us": 0, "booted_at_us": NOW - 20 * S}, True),
        # That its agent was started again is not a sign of life.
        (QUIET | {"booted_at_us": NOW}, True),
    ],
)
def test_who_is_suspect(seen: dict[str, Any], expected: bool) -> None:
    assert suspect(node(R, **seen), market(), NOW) is expected


def test_the_agent_of_a_silent_machine_is_started_again_and_again_but_not_all_the_time() -> None:
    seen = {"cloud_state": "running", "surveyed_at_us": NOW - S}
    silent = node(R, heard_at_us=minutes_ago(1), booted_at_us=minutes_ago(5), **seen)
    assert needed(silent) is K.BOOT
    assert needed(changed(silent, booted_at_us=NOW - 14 * S)) is None
    assert needed(changed(silent, booted_at_us=NOW - 15 * S)) is K.BOOT


def test_head_is_asked_once_before_a_silent_node_is_given_up() -> None:
    seen = {"cloud_state": "running", "surveyed_at_us": NOW - S, "booted_at_us": NOW - 5 * S}
    silent = node(R, heard_at_us=NOW - 90 * S, **seen)
    assert needed(silent) is K.READ_HEAD
    assert needed(silent, head=head(read_at_us=NOW)) is None
    assert needed(changed(silent, heard_at_us=NOW - 89 * S)) is None
    moved = head(step=silent.training.last_step + 1, seen_at_us=NOW - 10 * S)
    assert needed(silent, head=moved) is None, "it lives"
    assert needed(changed(silent, claimed_at_us=0)) is None, "it never held HEAD"


def test_the_last_look_does_not_wait_for_a_call_to_a_frozen_machine() -> None:
    booting = {"effect": K.BOOT, "effect_armed_at_us": NOW - S, "effect_due_at_us": NOW + 59 * S}
    seen = {"cloud_state": "running", "surveyed_at_us": NOW - S, "booted_at_us": NOW - 89 * S}
    assert needed(node(R, heard_at_us=NOW - 90 * S, **seen, **booting)) is K.READ_HEAD
    assert needed(node(R, heard_at_us=NOW - 89 * S, **seen, **booting)) is K.BOOT


def test_a_boot_that_is_under_way_is_not_asked_about() -> None:
    booting = {"effect": K.BOOT, "effect_armed_at_us": NOW - S, "effect_due_at_us": NOW + 59 * S}
    assert needed(node(R, **QUIET, **booting)) is K.BOOT
    failed = booting | {"effect_failed_at_us": NOW}
    assert needed(node(R, **QUIET, **failed)) is K.SURVEY


def test_a_machine_that_comes_up_is_asked_about_between_tries_to_reach_it() -> None:
    """A create that the cloud accepted may still come to nothing, and nobody else says so. A try
    that is under way is waited for; the next look is on time, however long the next try waits."""
    pending = {"host": "h", "cloud_state": "pending", "surveyed_at_us": NOW - 5 * S}
    tried = {"effect": K.BOOT, "effect_armed_at_us": NOW - S, "effect_due_at_us": NOW + 59 * S}
    assert needed(node(B, **pending, **tried)) is K.BOOT
    failed = tried | {"effect_failed_at_us": NOW, "effect_failures": 9}
    assert needed(node(B, **pending, **failed)) is K.SURVEY
    asked = node(B, **(pending | {"surveyed_at_us": NOW - 2 * S}), **failed)
    assert needed(asked) is K.BOOT
    _, plan = settle(view(asked))
    assert plan.wake_at_us == NOW + 3 * S
    running = changed(asked, cloud_state="running")
    _, plan = settle(view(running))
    assert plan.wake_at_us == NOW + 15 * S


def test_a_silent_node_has_its_rest_from_when_its_cloud_was_back() -> None:
    """What kept us from asking the cloud kept us from hearing the node, too."""
    silent = node(R, heard_at_us=NOW - 300 * S, surveyed_at_us=NOW, claimed_at_us=0)
    assert lost_at_us(silent, view(silent), market()) == NOW - 180 * S
    back = market(answering_since_us={"aws": NOW - S, "gcp": NOW + 9 * S})
    assert lost_at_us(silent, view(silent), back) == NOW - S + 30 * S
    old = market(answering_since_us={"aws": NOW - 900 * S})
    assert lost_at_us(silent, view(silent), old) == NOW - 180 * S


# --- behind a jump host


def test_nobody_is_given_up_while_the_jump_host_lets_nobody_through() -> None:
    silent = node(R, heard_at_us=NOW - 900 * S, surveyed_at_us=NOW, claimed_at_us=0)
    down = market(reached_since_us={"aws": NOW, "gcp": NOW - 900 * S})
    assert cut_off(silent, down, NOW)
    assert lost_at_us(silent, view(silent), down) == NOW + 120 * S
    back = market(reached_since_us={"aws": NOW - 30 * S})
    assert not cut_off(silent, back, NOW)
    assert lost_at_us(silent, view(silent), back) == NOW + 90 * S, "it has its whole time to speak"
    other = market(reached_since_us={"gcp": NOW})
    assert not cut_off(silent, other, NOW)
    assert lost_at_us(silent, view(silent), other) == NOW - 780 * S
    long_back = market(reached_since_us={"aws": NOW - 3600 * S})
    assert lost_at_us(silent, view(silent), long_back) == NOW - 780 * S


def test_a_silence_behind_a_jump_host_that_is_back_is_counted_from_then() -> None:
    quiet = node(R, heard_at_us=NOW - 60 * S)
    assert suspect(quiet, market(), NOW)
    assert not suspect(quiet, market(reached_since_us={"aws": NOW - 15 * S}), NOW)
    assert suspect(quiet, market(reached_since_us={"aws": NOW - 16 * S}), NOW)


@pytest.mark.parametrize(
    ("heard_s", "read_s", "expected"),
    [
        (900.0, 89.0, None),
        (900.0, 90.0, K.READ_HEAD),  # it may have finished meanwhile
        (89.0, 900.0, None),
        (90.0, 900.0, K.READ_HEAD),
    ],
)
def test_cloud_and_head_are_asked_though_nobody_can_get_there(
    heard_s: float, read_s: float, expected: EffectKind | None
) -> None:
    down = market(reached_since_us={"aws": NOW})
    heard_us, read_us = NOW - int(heard_s * S), NOW - int(read_s * S)
    seen = {"heard_at_us": heard_us, "link_down_at_us": NOW - 80 * S, "claimed_at_us": 1}
    asked = node(R, **seen, surveyed_at_us=NOW - S, booted_at_us=NOW - S)
    given = view(asked, job={"head": head(read_at_us=read_us)})
    assert need(asked, given, down, NOW) is expected
    unasked = changed(asked, surveyed_at_us=NOW - 90 * S)
    assert need(unasked, given, down, NOW) is K.SURVEY


# --- the hand-over


def old(**fields: Any) -> Node:
    """Being taken away in 50 s."""
    seen = {"leave_reason": PREEMPTED, "notices": (notice(50.0),)}
    return node(D, **(seen | fields))


def fresh(**fields: Any) -> Node:
    return hello(generation=2, offer=OFFERS[1], **(CHOSEN | fields))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (old(), fresh(), K.START),
        (old(), fresh(chosen=False), None),
        (old(), fresh(hello_at_us=0), None),
        (old(), fresh(**STARTED), None),
        # The old one is gone without a release: the claim is advanced.
        (node(G, leave_reason=PREEMPTED), fresh(**STARTED), K.START),
        (old(exit_code=1), fresh(**STARTED), K.START),
        # ... but not for one that knows it already, or sees it in HEAD by itself.
        (node(G, leave_reason=PREEMPTED), fresh(**(STARTED | {"started_claim": "now"})), None),
        (node(G, leave_reason=PREEMPTED), fresh(**STARTED, claimed_at_us=NOW), None),
    ],
)
def test_when_the_successor_is_started(
    before: Node, after: Node, expected: EffectKind | None
) -> None:
    assert needed(after, before) is expected


def test_a_release_in_head_is_seen_by_the_successor_itself() -> None:
    gone = node(G, leave_reason=PREEMPTED, released_at_us=NOW)
    assert needed(fresh(**STARTED), gone, head=head(released=True)) is None
    assert needed(fresh(**STARTED), gone, head=head(released=False)) is K.START


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (old(), fresh(**STARTED, ready_at_us=NOW), K.RELEASE),
        (old(), fresh(**STARTED), None),
        (old(), fresh(**STARTED, ready_at_us=NOW, chosen=False), None),
        (old(told_release_at_us=NOW), fresh(**STARTED, ready_at_us=NOW), None),
        (old(released_at_us=NOW), fresh(**STARTED, ready_at_us=NOW), None),
        (old(link_down_at_us=NOW), fresh(**STARTED, ready_at_us=NOW), K.SURVEY),
    ],
)
def test_when_the_old_one_is_told_to_release(
    before: Node, after: Node, expected: EffectKind | None
) -> None:
    assert needed(before, after) is expected


def test_a_gang_is_released_when_every_rank_of_the_next_is_ready() -> None:
    gang = [old(rank=rank) for rank in (0, 1)]
    ready = fresh(rank=0, **STARTED, ready_at_us=NOW)
    late = fresh(rank=1, **STARTED)
    assert needed(gang[0], gang[1], ready, late, spec=spec(num_nodes=2)) is None
    both = (ready, changed(late, ready_at_us=NOW))
    assert needed(gang[0], gang[1], *both, spec=spec(num_nodes=2)) is K.RELEASE


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (CHOSEN, True),
        ({}, True),  # a running node is chosen
        ({"chosen": False}, False),
        ({"released_at_us": NOW}, False),
        ({"exit_code": 1}, False),
    ],
)
def test_who_may_still_write(seen: dict[str, Any], expected: bool) -> None:
    assert may_write(node(R, **seen)) is expected
    assert may_write(node(D, **seen)) is expected
    assert not may_write(node(B, **(seen | CHOSEN)))


def claim(*before: Node, now: int = NOW) -> tuple[str, float]:
    one = fresh()
    return claim_for(one, view(*before, one), now)


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ((), ("now", 0.0)),
        ((node(G, leave_reason=PREEMPTED),), ("now", 0.0)),
        ((node(B),), ("now", 0.0)),
        ((old(),), ("after_release", 50.0)),
        ((old(released_at_us=NOW),), ("now", 0.0)),
        ((old(notices=(notice(-30.0),)),), ("after_release", 0.0)),
        ((old(rank=0), old(rank=1, notices=(notice(70.0),))), ("after_release", 70.0)),
        ((node(R),), ("after_release", 30.0)),
    ],
)
def test_when_head_may_be_claimed(before: tuple[Node, ...], expected: tuple[str, float]) -> None:
    assert claim(*before) == expected


@pytest.mark.parametrize(
    ("notices", "drained_at_us", "expected"),
    [
        ((notice(50.0),), 0, NOW + 50 * S),
        ((notice(50.0), notice(20.0, notice_id="n2")), 0, NOW + 20 * S),
        ((notice(50.0), notice(20.0, withdrawn=True)), 0, NOW + 50 * S),
        ((notice(20.0, kind=NoticeKind.REBALANCE),), NOW - 10 * S, NOW + 20 * S),
        ((notice(deadline_us=None),), 0, NOW - S),  # unknown: taken as now
        ((), NOW - 10 * S, NOW + 20 * S),
        ((), 0, NOW + 30 * S),
    ],
)
def test_until_when_a_draining_node_may_save(
    notices: Any, drained_at_us: int, expected: int
) -> None:
    draining = node(D, notices=notices, drained_at_us=drained_at_us)
    assert release_deadline_us(draining, view(draining), NOW) == expected


@pytest.mark.parametrize("reason", [LeaveReason.OUTBID, LeaveReason.PREEMPTED])
def test_who_trains_on_until_it_is_replaced_saves_only_then(reason: LeaveReason) -> None:
    """It was to leave ten minutes ago, and no notice says when it goes: that its replacement took
    so long to come up takes nothing away from its last save."""
    one = node(D, leave_reason=reason, drained_at_us=minutes_ago(10))
    whole_s = view(one).job.spec.timeouts.setup_timeout_s + view(one).job.spec.timeouts.stop_grace_s
    assert claim(one) == ("after_release", whole_s)
    told = changed(one, told_release_at_us=NOW - 10 * S)
    assert claim(told) == ("after_release", 20.0)
    mate = node(D, rank=1, leave_reason=reason, notices=(notice(50.0),))
    assert claim(one, mate) == ("after_release", 50.0), "its gang is taken away by then"


def test_a_save_is_asked_of_running_nodes_once_for_each_wish() -> None:
    assert needed(node(R), save_wanted_at_us=NOW) is K.SAVE
    assert needed(node(R, told_save_at_us=NOW), save_wanted_at_us=NOW) is None
    assert needed(node(R), save_wanted_at_us=minutes_ago(5)) is None, "an earlier machine's"
    assert needed(node(D, leave_reason=PREEMPTED), save_wanted_at_us=NOW) is None


# --- when a call may be made


def due(one: Node, kind: EffectKind, now: int = NOW, **timing: Any) -> int:
    return due_at_us(one, view(one), market(**timing), kind, now)


def armed(kind: EffectKind, ago_s: float, **fields: Any) -> dict[str, Any]:
    at_us = NOW - int(ago_s * S)
    deadline_us = at_us + int(CALL_DEADLINE_S[kind] * S)
    return {"effect": kind, "effect_armed_at_us": at_us, "effect_due_at_us": deadline_us} | fields


@pytest.mark.parametrize(
    ("seen", "kind", "after_s"),
    [
        ({}, K.LAUNCH, 0.0),
        (armed(K.LAUNCH, 5), K.LAUNCH, 10.0),  # in flight
        (armed(K.LAUNCH, 20), K.LAUNCH, 0.0),  # given up
        (armed(K.SURVEY, 5), K.LAUNCH, 0.0),  # another call is not an obstacle
        (armed(K.LAUNCH, 5, effect_failed_at_us=NOW, effect_failures=1), K.LAUNCH, 0.25),
        (armed(K.LAUNCH, 5, effect_failed_at_us=NOW, effect_failures=3), K.LAUNCH, 1.0),
        (armed(K.LAUNCH, 5, effect_failed_at_us=NOW, effect_failures=99), K.LAUNCH, 15.0),
        (armed(K.LAUNCH, 5, effect_failed_at_us=NOW - 9 * S, effect_failures=9), K.LAUNCH, 10.0),
        (armed(K.BOOT, 5), K.BOOT, 55.0),
        (armed(K.BOOT, 5, booted_at_us=NOW), K.BOOT, 0.0),  # its outcome is known
        (armed(K.START, 5, started_at_us=NOW), K.START, 0.0),
        (armed(K.TERMINATE, 5, terminated_at_us=NOW), K.TERMINATE, 0.0),
        (armed(K.SAVE, 5, told_save_at_us=NOW), K.SAVE, 0.0),
        (armed(K.SURVEY, 5, surveyed_at_us=NOW), K.SURVEY, 0.5),  # twice a second at most
        ({"surveyed_at_us": NOW - S // 4}, K.SURVEY, 0.25),
        (armed(K.SURVEY, 5, surveyed_at_us=NOW - 6 * S), K.SURVEY, 10.0),
    ],
)
def test_when_a_call_is_due(seen: dict[str, Any], kind: EffectKind, after_s: float) -> None:
    assert due(node(B, **seen), kind) == NOW + int(after_s * S)


@pytest.mark.parametrize("kind", EffectKind)
def test_what_a_dead_daemon_was_doing_is_due_at_once(kind: EffectKind) -> None:
    one = node(B, **armed(kind, 1))
    assert due(one, kind) > NOW
    assert due(one, kind, started_at_us=NOW - S) > NOW, "armed by ourselves"
    assert due(one, kind, started_at_us=NOW - S + 1) == NOW


def test_a_start_that_died_with_its_daemon_is_not_in_flight() -> None:
    started = fresh(**armed(K.START, 1), **QUIET)
    assert need(started, view(started), market(), NOW) is K.START, "it may ship packages for long"
    after = market(started_at_us=NOW)
    assert need(started, view(started), after, NOW) is K.SURVEY, "and it is silent"


def test_every_call_has_a_deadline_and_a_create_ends_before_it() -> None:
    assert set(CALL_DEADLINE_S) == set(EffectKind)
    deadline_us = NOW + int(CALL_DEADLINE_S[K.LAUNCH] * S)
    assert last_start_us(K.LAUNCH, deadline_us) == deadline_us - int(LAUNCH_S * S) > NOW
    assert last_start_us(K.TERMINATE, deadline_us) == deadline_us


def test_patience_is_the_configurations() -> None:
    calm = market(timing=Timing(suspect_after_s=60.0))
    quiet = node(R, **QUIET)
    assert need(quiet, View(view(quiet).job, (), (quiet,)), calm, NOW) is None
