"""A gang that loses a machine: those that are left go on, and take others in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spotd.act.effects import effects_of
from spotd.domain.events import Severity
from spotd.domain.fast_replace import changed
from spotd.domain.market import Market
from spotd.domain.node import EffectKind, MachineStatus, Node, NodeLease, NodeStartup
from spotd.domain.on_node_loss import Elastic, OnNodeLoss
from spotd.domain.plan import MoveNode, Plan
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.planner.core.next_effect import need
from spotd.planner.core.node_bootstrap import agent_config, start_document
from spotd.planner.offers.cooldowns import refusal_of
from spotd.planner.rules.gang_resize import KNOWN_OF_MACHINES, REGROWN
from spotd.wire.parts import values_of
from tests.spotd.planner.build import (
    NOW,
    OFFERS,
    by_id,
    head,
    hello,
    kinds,
    market,
    node,
    notice,
    settle,
    spec,
    view,
)

L, B, R = NodeState.LAUNCHING, NodeState.BOOTING, NodeState.RUNNING
D, T, G = NodeState.DRAINING, NodeState.TERMINATING, NodeState.GONE
SHRINK = Elastic(OnNodeLoss.SHRINK)
NOBODY = market(())  # that could be asked for
KNOWN = {"cloud_state": "running", "seen_at_us": NOW - 9 * S, "port": 22, "ssh_user": "u"}


def job(elastic: Elastic = SHRINK, num_nodes: int = 2, **fields: Any) -> dict[str, Any]:
    return {"spec": spec(num_nodes=num_nodes, elastic=elastic)} | fields


def trains(rank: int = 0, state: NodeState = R, **fields: Any) -> Node:
    seen = {**KNOWN, "host": f"10.0.0.{rank}", "private_host": f"10.1.0.{rank}", "chosen": True}
    return node(state, rank=rank, **(seen | fields))


def lost(rank: int = 1, **fields: Any) -> Node:
    left = {"leave_reason": LeaveReason.LOST, "left_at_us": NOW, "terminating_at_us": NOW}
    return trains(rank, T, **(left | fields))


def going(rank: int = 1, **fields: Any) -> Node:
    """It is being preempted, and its gang drains with it."""
    left = {"leave_reason": LeaveReason.PREEMPTED, "drained_at_us": NOW - 9 * S}
    return trains(rank, D, **(left | fields))


def released(rank: int = 0, **fields: Any) -> Node:
    ended = {"exit_code": 75, "exited_at_us": NOW - S, "released_at_us": NOW - 2 * S}
    return going(rank, **(ended | fields))


def crew(after: View) -> list[Node]:
    mine = [n for n in after.nodes if n.generation == after.job.generation and n.chosen]
    return sorted(mine, key=lambda n: n.rank)


def moves(plan: Plan) -> int:
    return sum(isinstance(change, MoveNode) for change in plan.changes)


def decided(*nodes: Node, sold: Market = NOBODY, **fields: Any) -> tuple[View, Plan]:
    return settle(view(*nodes, job=job() | fields), sold)


@pytest.mark.req("ELA-01")
def test_a_death_shrinks_at_once_and_the_machine_is_the_same_to_its_cloud() -> None:
    old = trains(last_step=120, renewed_until_us=NOW + S, expires_at_us=NOW)
    after, plan = decided(old, lost())
    (new,) = crew(after)
    assert (new.generation, new.rank, new.gang_size, new.state) == (2, 0, 1, B)
    assert (new.token, new.instance_id, new.offer) == (old.token, old.instance_id, old.offer)
    assert (new.address.host, new.address.private_host, new.address.port) == (
        old.address.host,
        old.address.private_host,
        old.address.port,
    )
    assert (new.requested_at_us, new.lease.expires_at_us) == (
        old.requested_at_us,
        old.lease.expires_at_us,
    )
    assert (new.moved_at_us, new.machine.launched_at_us) == (NOW, NOW)
    assert new.lease.renewed_until_us == old.lease.renewed_until_us
    assert new.call.effect is EffectKind.BOOT
    observed = (
        new.startup.hello_at_us,
        new.startup.started_at_us,
        new.training.claimed_at_us,
        new.training.last_step,
    )
    assert observed == (0, 0, 0, 0), "of its agent and its program nothing is known"
    over = by_id(after, old)
    assert (over.state, over.departure.leave_reason, over.departure.left_at_us) == (
        G,
        LeaveReason.DONE,
        NOW,
    )
    assert over.token not in {n.token for n in after.nodes if n.id != over.id}
    assert (after.attempts[-1].generation, after.attempts[-1].cause) == (2, "lost")
    assert "shrunk" in kinds(plan)
    assert plan.events[kinds(plan).index("shrunk")].alert


def test_ranks_close_up() -> None:
    after, _ = decided(lost(0), trains(1), trains(2), **job(num_nodes=3))
    assert [(n.rank, n.address.host) for n in crew(after)] == [(0, "10.0.0.1"), (1, "10.0.0.2")]
    assert {n.gang_size for n in crew(after)} == {2}


def test_a_job_that_waits_is_given_back_whole() -> None:
    after, plan = decided(trains(), lost(), **job(Elastic()))
    assert by_id(after, trains()).state is T
    assert not moves(plan)


def test_with_too_few_left_it_is_as_for_one_that_waits() -> None:
    after, plan = decided(trains(), lost(), **job(Elastic(OnNodeLoss.SHRINK, min_nodes=2)))
    assert by_id(after, trains()).state is T
    assert not moves(plan)


def test_a_notice_lets_all_train_on_and_then_save() -> None:
    first, second = trains(), trains(1, notices=(notice(),))
    after, plan = decided(first, second)
    assert [by_id(after, n).state for n in (first, second)] == [D, D]
    assert not moves(plan)
    after, plan = decided(released(), going(notices=(notice(),)))
    assert by_id(after, going()).call.effect is not EffectKind.DRAIN
    (new,) = crew(after)
    assert (new.generation, new.gang_size) == (2, 1)
    assert after.attempts[-1].cause == "preempted"


def test_one_that_saves_is_waited_for() -> None:
    sent = {"exit_code": 75, "released_at_us": NOW - S, "exited_at_us": NOW - S}
    three = {"spec": spec(num_nodes=3, elastic=SHRINK)}
    after, plan = decided(released(), going(1), going(2, notices=(notice(),), **sent), **three)
    assert not moves(plan)
    assert by_id(after, going(1)).call.effect is EffectKind.RELEASE
    assert by_id(after, going(2)).state is T
    late = going(1, told_release_at_us=NOW - 60 * S)
    _, plan = decided(released(), late, going(2, notices=(notice(),), **sent), **three)
    assert moves(plan) == 2, "it has had its time"


def test_an_end_by_itself_is_no_stop() -> None:
    """75 of a program that nobody asked to stop would make attempts without an end."""
    ended_us = NOW - 60 * S  # so long that the other machine would have been found dead
    after, plan = decided(
        trains(exit_code=75, exited_at_us=ended_us, released_at_us=NOW), trains(1)
    )
    assert by_id(after, trains()).state is T, "and its machine is not gone on with"
    assert [n.address.host for n in crew(after)] == ["10.0.0.1"]
    assert (after.job.backoff.failures, moves(plan)) == (1, 1)


@pytest.mark.parametrize("code", [1, 137])
def test_who_crashes_because_another_is_gone_goes_on(code: int) -> None:
    ended = trains(exit_code=code, exited_at_us=NOW - S)
    after, plan = decided(ended, lost())
    assert moves(plan) == 1
    assert after.job.backoff.failures == 0
    silent = trains(1, link_down_at_us=NOW - 20 * S, heard_at_us=NOW - 20 * S, booted_at_us=1)
    early = changed(ended, exited_at_us=NOW - 60 * S)
    after, plan = decided(early, silent)
    assert not moves(plan), "whether that one is lost is not known yet"
    assert by_id(after, ended).state is R
    assert after.job.backoff.failures == 0
    after, _ = decided(changed(ended, exited_at_us=NOW - 60 * S), trains(1))
    assert after.job.backoff.failures == 1, "all machines are well: it is the program's own crash"


def test_who_waits_then_shrinks_gives_others_their_time() -> None:
    waits = job(Elastic(OnNodeLoss.WAIT_THEN_SHRINK, shrink_after_s=60.0))
    after, plan = decided(trains(), lost(), **waits)
    assert (moves(plan), by_id(after, trains()).state) == (0, R)
    assert plan.wake_at_us == NOW + 60 * S or plan.wake_at_us < NOW + 60 * S
    assert "wait for the others, for 60 s" in plan.reason or any(
        "wait for the others, for 60 s" in text for text in plan.reasons
    )
    early = lost(terminating_at_us=NOW - 60 * S, left_at_us=NOW - 60 * S)
    _, plan = decided(trains(), early, **waits)
    assert moves(plan) == 1
    ready = comer(generation=1)
    after, plan = decided(trains(), lost(), ready, **waits)
    assert [n.gang_size for n in crew(after)] == [2, 2], "one came in time"


# --- growing


def small(**fields: Any) -> Node:
    """All that is left of two: it has trained for long enough."""
    begun = {"moved_at_us": NOW - 500 * S, "first_step_at_us": NOW - 400 * S}
    return trains(**({"gang_size": 1, "generation": 2} | begun | fields))


def comer(**fields: Any) -> Node:
    seen = {"ready_at_us": NOW - S, "instance_id": "i-new", "host": "10.0.0.9"}
    place = {"generation": 2, "rank": 1, "candidate": 1}
    return hello(**(place | seen | fields))


def test_who_trains_saves_when_those_that_join_are_ready() -> None:
    after, plan = decided(small(), comer(ready_at_us=0))
    assert by_id(after, small()).state is R
    after, plan = decided(small(), comer())
    assert by_id(after, small()).state is D
    assert by_id(after, small()).call.effect is EffectKind.RELEASE
    assert by_id(after, comer()).state is B
    assert "joining" in kinds(plan)
    assert refusal_of(by_id(after, small())) is None, "its place has done nothing wrong"


def test_all_go_on_together() -> None:
    saved = small(
        state=D, leave_reason=LeaveReason.MOVED, exit_code=75, released_at_us=NOW, exited_at_us=NOW
    )
    after, plan = decided(saved, comer())
    assert [(n.rank, n.address.host, n.gang_size) for n in crew(after)] == [
        (0, "10.0.0.0", 2),
        (1, "10.0.0.9", 2),
    ]
    assert (after.attempts[-1].generation, after.attempts[-1].cause) == (3, REGROWN)
    assert "regrouped" in kinds(plan)
    assert after.job.generation == 3


def test_one_that_comes_before_the_end_of_a_notice_takes_over_without_a_smaller_gang() -> None:
    there = comer(generation=1)
    after, _ = decided(going(0), going(1, notices=(notice(),)), there)
    assert by_id(after, going(0)).call.effect is EffectKind.RELEASE
    assert by_id(after, going(1)).call.effect is EffectKind.RELEASE
    after, _ = decided(released(), going(1, notices=(notice(),)), there)
    assert [n.address.host for n in crew(after)] == ["10.0.0.0", "10.0.0.9"]


def test_a_newcomer_prepares_and_has_no_rank() -> None:
    fresh = comer(ready_at_us=0)
    before = view(small(), fresh, job=job())
    assert need(fresh, before, market(), NOW) is EffectKind.START
    after, plan = settle(before, NOBODY)
    (effect,) = [e for e in effects_of(after, plan.armed, NOW) if e.kind is EffectKind.START]
    assert effect.data["hold"] is True
    assert effect.data["node_ips"] == ("10.0.0.9",)
    document = start_document(after.job, effect, {}, {})
    assert document.hold
    assert not by_id(after, fresh).chosen
    told = view(small(), changed(fresh, started_at_us=NOW), job=job())
    assert need(told.nodes[1], told, market(), NOW) is None


def test_a_moved_one_is_started_with_all_of_its_gang() -> None:
    two = [
        trains(
            rank,
            B,
            moved_at_us=NOW - S,
            hello_at_us=NOW,
            booted_at_us=NOW,
            gang_size=2,
            generation=3,
            started_at_us=0,
            claimed_at_us=0,
            first_step_at_us=0,
        )
        for rank in (0, 1)
    ]
    after, plan = decided(*two, **job(num_nodes=3))
    (effect, _) = [e for e in effects_of(after, plan.armed, NOW) if e.kind is EffectKind.START]
    document = start_document(after.job, effect, {}, {})
    assert (document.gang.num_nodes, document.hold) == (2, False)
    assert document.gang.node_ips == ("10.1.0.0", "10.1.0.1")


def test_a_newcomer_whose_setup_fails_ends_no_job() -> None:
    broken = comer(ready_at_us=0, setup_failed=True)
    after, _ = decided(small(), broken)
    assert (by_id(after, broken).state, after.job.end.stop_text) == (T, "")
    assert by_id(after, small()).state is R


def test_who_is_not_needed_any_more_is_given_back() -> None:
    whole = [trains(0), trains(1)]
    after, _ = decided(*whole, comer(generation=1))
    assert by_id(after, comer(generation=1)).departure.leave_reason is LeaveReason.HEDGE_LOST
    after, _ = decided(lost(0), lost(1), comer(generation=1))
    assert by_id(after, comer(generation=1)).departure.leave_reason is LeaveReason.HEDGE_LOST


def test_a_moved_machine_that_does_not_answer_is_soon_given_up() -> None:
    gone = trains(
        1, B, generation=2, gang_size=2, moved_at_us=NOW - 200 * S, hello_at_us=0, booted_at_us=0,
        claimed_at_us=0, started_at_us=0, first_step_at_us=0, ready_at_us=0, heard_at_us=0,
    )  # fmt: skip
    here = changed(gone, id="other", rank=0, token="o", hello_at_us=NOW, booted_at_us=NOW)
    after, plan = decided(here, gone)
    assert by_id(after, gone).departure.leave_reason is LeaveReason.BOOT_TIMEOUT
    assert moves(plan) == 1


def test_a_head_that_is_ahead_is_not_met_again() -> None:
    after, _ = decided(trains(), lost(), head=head(generation=7))
    assert after.job.generation == 8


def test_an_agent_is_told_that_its_disk_may_be_needed() -> None:
    class Cloud:
        watcher, limits_life, power_off, prepared_file = "none", False, (), ""

    told = [
        agent_config("d", view(trains(), job=fields).job, trains(), Cloud(), NOW)  # type: ignore[arg-type]
        for fields in (job(), job(Elastic()))
    ]
    assert [config.regroups for config in told] == [True, False]
    assert OFFERS


# --- what a user reads, and what is on record


def told(plan: Plan, kind: str) -> Any:
    event = next(event for event in plan.events if event.kind == kind)
    return event.text, event.severity, event.alert, dict(event.data)


def test_what_is_told_of_a_gang_that_goes_on() -> None:
    _, plan = decided(trains(), lost())
    text = "train continues with 1 of 2 machines, from its last checkpoint"
    assert told(plan, "shrunk") == (text, Severity.WARNING, True, {"nodes": 1, "of": 2})
    assert "attempt 2 continues with 1 of 2 machines" in plan.reasons
    saved = small(
        state=D, leave_reason=LeaveReason.MOVED, exit_code=75, released_at_us=NOW, exited_at_us=NOW
    )
    _, plan = decided(saved, comer())
    text = "train continues with all 2 machines, from its last checkpoint"
    assert told(plan, "regrouped") == (text, Severity.INFO, True, {"nodes": 2, "of": 2})
    _, plan = decided(released(), going(1, notices=(notice(),)), comer(generation=1))
    assert told(plan, "regrouped")[2] is False, "as many as before: a recovery, which is told"


@pytest.mark.parametrize(("count", "words"), [(1, "one machine"), (2, "2 machines")])
def test_what_is_told_of_those_that_join(count: int, words: str) -> None:
    ready = [comer(rank=n, candidate=n, instance_id=f"i{n}") for n in range(1, count + 1)]
    after, plan = decided(small(), *ready, **job(num_nodes=1 + count))
    text = f"{words} is ready: the gang saves, and continues with {1 + count}"
    assert told(plan, "joining")[0] == text
    assert f"saving, to continue with {1 + count} of {1 + count} machines" in plan.reasons
    mine = by_id(after, small())
    assert (mine.departure.leave_reason, mine.departure.leave_text) == (
        LeaveReason.MOVED,
        f"{words} joins it",
    )
    assert (mine.departure.left_at_us, mine.departure.drained_at_us) == (NOW, NOW)


def test_a_new_row_has_nothing_of_the_old_one_but_the_machine() -> None:
    hint = notice(withdrawn=True)
    old = trains(2, notices=(hint,), image_id="ami", image_setup="s", missed_at_us=3, wire=1)
    after, _ = decided(lost(0), lost(1), old, **job(num_nodes=3))
    (new,) = crew(after)
    fresh = Node(
        id="j0-g2-c0-r0",
        job_id=old.job_id,
        generation=2,
        rank=0,
        candidate=0,
        token=old.token,
        offer=old.offer,
        state=B,
        requested_at_us=old.requested_at_us,
        moved_at_us=NOW,
        gang_size=1,
        chosen=True,
        startup=NodeStartup("ami", "s"),
        machine=MachineStatus(launched_at_us=NOW),
        lease=NodeLease(expires_at_us=old.lease.expires_at_us),
        notices=(hint,),
    )
    effect = ("effect", "effect_armed_at_us", "effect_due_at_us")
    assert new == changed(fresh, **values_of(old, KNOWN_OF_MACHINES), **values_of(new, effect))


def test_of_those_that_are_too_many_the_newest_are_given_back() -> None:
    early, late = comer(ready_at_us=NOW - 9 * S), comer(candidate=2, ready_at_us=0)
    after, _ = decided(small(), early, late)
    assert by_id(after, early).state is B
    gone = by_id(after, late)
    assert (gone.state, gone.departure.leave_reason) == (T, LeaveReason.HEDGE_LOST)
    assert gone.departure.leave_text == "its gang is complete"
    after, _ = decided(lost(0), lost(1), comer(generation=1))
    left = by_id(after, comer(generation=1))
    assert left.departure.leave_text == "no gang is left that it could join"


def test_those_that_wait_for_others_are_looked_at_in_time() -> None:
    ready = comer(ready_at_us=NOW - 20 * S)
    coming = comer(candidate=2, ready_at_us=0, started_at_us=NOW)
    after, plan = decided(small(), ready, coming, **job(num_nodes=3))
    assert by_id(after, small()).state is R
    assert NOW < plan.wake_at_us <= NOW + 100 * S


def test_a_silent_one_is_waited_for() -> None:
    saved = small(
        state=D, leave_reason=LeaveReason.MOVED, exit_code=75, released_at_us=NOW, exited_at_us=NOW
    )
    mute = changed(saved, id="m", rank=1, token="m", exit_code=None, link_down_at_us=NOW - 9 * S)
    mute = changed(mute, told_release_at_us=NOW - 900 * S)
    _, plan = decided(replace(saved, gang_size=2), replace(mute, gang_size=2), **job(num_nodes=3))
    assert not moves(plan)
    assert any(
        ("is silent: spotd decides who continues when that is resolved") in r for r in plan.reasons
    )


@pytest.mark.parametrize("elastic", [Elastic(), SHRINK])
def test_a_rank_that_fails_alone_before_the_first_step_of_all_is_tried_again(
    elastic: Elastic,
) -> None:
    """The other one stood still, and nobody knows it any more."""
    young = {"first_step_at_us": 0, "last_step": 0}
    ended = trains(1, exit_code=1, exited_at_us=NOW - 60 * S, **young)
    fresh = job(elastic, first_step_at_us=0)
    after, _ = decided(trains(0, **young), ended, **fresh)
    assert (after.job.backoff.failures, after.job.end.stop_text) == (1, "")
    both = trains(0, exit_code=1, exited_at_us=NOW - 60 * S, **young)
    after, _ = decided(both, ended, **fresh)
    assert after.job.end.stop_text.endswith("before its first step")
