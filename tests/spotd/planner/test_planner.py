"""The policy as a table: a view, and what follows from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from providers.base import NoticeKind, Scope
from spotd.domain.fast_replace import changed
from spotd.domain.job import CheckpointSpec, Desired
from spotd.domain.market import Refusal
from spotd.domain.node import EffectKind, Node
from spotd.domain.states import LeaveReason, NodeState, Outcome
from spotd.domain.units import S
from spotd.domain.view import View
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
    offer,
    settle,
    spec,
    view,
)

L, B, R, D, T, G = NodeState


def test_a_wanted_job_is_placed_on_the_cheapest_offer() -> None:
    after, plan = settle(view())
    assert after.job.generation == 1
    (new,) = after.nodes
    assert new.offer == OFFERS[0]
    assert (new.state, new.call.effect) == (L, EffectKind.LAUNCH)
    assert "cheapest of 4" in plan.reason


def test_a_launched_node_is_booted_when_its_address_is_known() -> None:
    launched = node(L, instance_id="i-1", launched_at_us=NOW)
    after, _ = settle(view(launched))
    assert by_id(after, launched).state is B
    assert by_id(after, launched).call.effect is EffectKind.SURVEY
    after, _ = settle(view(changed(launched, host="127.0.0.1")))
    assert by_id(after, launched).call.effect is EffectKind.BOOT


@pytest.mark.req("RPV-08")
def test_a_refused_launch_tries_the_next_offer_in_the_same_pass() -> None:
    refused = node(L, launch_error="no capacity", launch_error_code="CapacityError", gone_at_us=NOW)
    refusals = (Refusal(OFFERS[0].key, Scope.OFFER, "CapacityError", NOW),)
    after, _ = settle(view(refused), market(refusals=refusals))
    assert by_id(after, refused).state is G
    assert by_id(after, refused).departure.leave_reason is LeaveReason.CAPACITY
    second = after.nodes[1]
    assert second.offer == OFFERS[1]
    assert (second.generation, second.candidate) == (1, 1), "the attempt goes on: nobody was chosen"
    assert after.job.backoff.failures == 0


def test_a_rejected_request_fails_the_job_with_the_vendors_text() -> None:
    refused = node(
        L, launch_error="unknown image", launch_error_code="RejectedError", gone_at_us=NOW
    )
    after, _ = settle(view(refused))
    assert after.job.outcome is Outcome.FAILED
    assert "unknown image" in after.job.end.outcome_text
    assert len(after.nodes) == 1


def test_the_first_hello_is_chosen_and_the_other_candidate_given_back() -> None:
    first, other = hello(candidate=1, offer=OFFERS[1]), node(B, candidate=0, host="127.0.0.1")
    after, _ = settle(view(other, first, job={"spec": spec(candidates=2)}))
    assert by_id(after, first).chosen
    assert by_id(after, first).call.effect is EffectKind.START
    assert by_id(after, other).state is T
    assert by_id(after, other).departure.leave_reason is LeaveReason.HEDGE_LOST
    assert by_id(after, other).call.effect is EffectKind.TERMINATE


def test_nothing_is_told_to_start_before_it_is_chosen() -> None:
    gang = [hello(rank=0), node(B, rank=1, host="h", booted_at_us=NOW, heard_at_us=NOW)]
    after, _ = settle(view(*gang, job={"spec": spec(num_nodes=2)}))
    assert not any(n.chosen for n in after.nodes)
    assert all(n.call.effect is not EffectKind.START for n in after.nodes)


@pytest.mark.req("RPV-01")
def test_a_notice_drains_and_asks_for_a_replacement_in_one_pass() -> None:
    running = node(R, notices=(notice(),))
    after, plan = settle(view(running))
    assert by_id(after, running).state is D
    assert by_id(after, running).call.effect is not EffectKind.TERMINATE
    replacement = after.nodes[1]
    assert replacement.generation == 2
    assert replacement.offer == OFFERS[1], "not the offer being taken away"
    assert replacement.call.effect is EffectKind.LAUNCH
    assert "notice" in kinds(plan)


def test_a_rebalance_recommendation_never_drains() -> None:
    running = node(R, notices=(notice(kind=NoticeKind.REBALANCE),))
    after, _ = settle(view(running))
    assert after.nodes == (running,)


def test_the_replacement_waits_for_the_release_and_the_old_node_is_told_when_it_is_ready() -> None:
    old = node(D, leave_reason=LeaveReason.PREEMPTED, notices=(notice(100),), drained_at_us=NOW)
    fresh = hello(generation=2, offer=OFFERS[1], chosen=True)
    after, _ = settle(view(old, fresh))
    assert by_id(after, fresh).call.effect is EffectKind.START
    assert by_id(after, old).call.effect is None
    ready = changed(fresh, started_at_us=NOW, started_claim="after_release", ready_at_us=NOW)
    after, _ = settle(view(old, ready))
    assert by_id(after, old).call.effect is EffectKind.RELEASE


def test_a_successor_may_claim_at_once_when_the_old_node_is_lost() -> None:
    old = node(G, leave_reason=LeaveReason.LOST, gone_at_us=NOW)
    waiting = hello(
        generation=2,
        chosen=True,
        offer=OFFERS[1],
        started_at_us=NOW - S,
        started_claim="after_release",
    )
    after, _ = settle(view(old, waiting))
    assert by_id(after, waiting).call.effect is EffectKind.START


def test_a_released_node_is_given_back() -> None:
    exited = {"released_at_us": NOW, "exit_code": 75, "exited_at_us": NOW}
    old = node(D, leave_reason=LeaveReason.PREEMPTED, notices=(notice(),), **exited)
    after, _ = settle(view(old, hello(generation=2, chosen=True, offer=OFFERS[1])))
    assert by_id(after, old).state is T
    assert by_id(after, old).departure.leave_reason is LeaveReason.PREEMPTED


@pytest.mark.req("PRE-03")
def test_a_withdrawn_notice_returns_to_running_and_gives_candidates_back() -> None:
    old = node(D, leave_reason=LeaveReason.PREEMPTED, notices=(notice(withdrawn=True),))
    candidate = node(L, generation=2, offer=OFFERS[1])
    after, _ = settle(view(old, candidate))
    assert by_id(after, old).state is R
    assert by_id(after, candidate).state is T


def test_a_withdrawn_notice_does_not_undo_a_chosen_replacement() -> None:
    old = node(D, leave_reason=LeaveReason.PREEMPTED, notices=(notice(withdrawn=True),))
    fresh = hello(generation=2, chosen=True, offer=OFFERS[1])
    after, _ = settle(view(old, fresh))
    assert by_id(after, old).state is D


@pytest.mark.req("PRE-10")
def test_a_node_that_the_cloud_no_longer_has_is_lost_and_replaced_at_once() -> None:
    running = node(R, gone_at_us=NOW, cloud_state="absent")
    after, plan = settle(view(running))
    assert by_id(after, running).state is G
    assert by_id(after, running).departure.leave_reason is LeaveReason.LOST
    assert after.nodes[1].offer == OFFERS[1]
    assert any(event.alert for event in plan.events)


def test_a_cut_link_asks_the_cloud_first_and_kills_nothing() -> None:
    running = node(R, link_down_at_us=NOW)
    after, _ = settle(view(running))
    assert by_id(after, running).state is R
    assert by_id(after, running).call.effect is EffectKind.SURVEY
    assert len(after.nodes) == 1


def test_silence_is_judged_after_the_cloud_was_asked_and_only_after_a_long_time() -> None:
    silent = node(R, heard_at_us=NOW - 20 * S)
    after, _ = settle(view(silent))
    assert by_id(after, silent).call.effect is EffectKind.SURVEY
    listed = changed(silent, surveyed_at_us=NOW - S, cloud_state="running")
    after, _ = settle(view(listed))
    assert by_id(after, listed).state is R
    late = NOW + 120 * S
    looked = {"head": head(read_at_us=NOW + 70 * S)}
    after, _ = settle(view(changed(listed, surveyed_at_us=late), job=looked), now=late)
    assert by_id(after, listed).state is T
    assert by_id(after, listed).departure.leave_reason is LeaveReason.LOST


def test_where_the_machine_runs_the_agent_is_started_again() -> None:
    """Its link is down and the cloud lists it: the agent died, training perhaps not."""
    down = node(R, link_down_at_us=NOW - 2 * S, surveyed_at_us=NOW - S, cloud_state="running")
    after, _ = settle(view(down))
    assert by_id(after, down).state is R
    assert by_id(after, down).call.effect is EffectKind.BOOT
    booted = changed(by_id(after, down), booted_at_us=NOW + S)
    after, _ = settle(view(booted), now=NOW + S)
    assert by_id(after, booted) == booted, "done; now it is for the agent to speak"
    after, _ = settle(view(booted), now=NOW + 5 * S)
    assert by_id(after, booted).call.effect is EffectKind.SURVEY, "it does not"
    asked = changed(booted, surveyed_at_us=NOW + 16 * S)
    after, _ = settle(view(asked), now=NOW + 16 * S)
    assert by_id(after, asked).call.effect is EffectKind.BOOT, "so it is started once more"


@pytest.mark.parametrize("state", ["", "pending", "stopping", "terminated", "absent"])
def test_no_agent_is_started_on_a_machine_that_does_not_run(state: str) -> None:
    down = node(R, link_down_at_us=NOW - 2 * S, surveyed_at_us=NOW - S, cloud_state=state)
    after, _ = settle(view(down))
    assert by_id(after, down).call.effect is None


def test_a_start_that_no_agent_hears_is_repeated_when_the_agent_is_there_again() -> None:
    down = {"link_down_at_us": NOW - 2 * S, "surveyed_at_us": NOW - S, "cloud_state": "running"}
    deaf = hello(chosen=True, **down)
    after, _ = settle(view(deaf))
    assert by_id(after, deaf).call.effect is EffectKind.BOOT
    booted = changed(by_id(after, deaf), booted_at_us=NOW + S)
    after, _ = settle(view(booted), now=NOW + S)
    assert by_id(after, booted).call.effect is EffectKind.START


def test_a_start_under_way_is_left_alone() -> None:
    """It may ship packages for minutes, on a link too busy for anything else."""
    busy = {"effect": EffectKind.START, "effect_armed_at_us": NOW - 60 * S}
    busy |= {"effect_due_at_us": NOW + 840 * S, "heard_at_us": NOW - 20 * S}
    starting = hello(chosen=True, **busy)
    after, _ = settle(view(starting))
    assert by_id(after, starting) == starting


def test_starting_the_agent_again_does_not_put_off_that_a_node_is_lost() -> None:
    late = NOW + 120 * S
    silent = node(R, heard_at_us=NOW, booted_at_us=late, surveyed_at_us=late, cloud_state="running")
    looked = {"head": head(read_at_us=NOW + 90 * S)}
    after, _ = settle(view(silent, job=looked), now=late)
    assert by_id(after, silent).departure.leave_reason is LeaveReason.LOST


def test_before_a_silent_node_is_given_up_head_is_read() -> None:
    late = NOW + 95 * S
    silent = node(R, heard_at_us=NOW, booted_at_us=late - S, surveyed_at_us=late)
    after, _ = settle(view(silent, job={"head": head()}), now=late)
    assert by_id(after, silent).call.effect is EffectKind.READ_HEAD
    after, _ = settle(view(silent, job={"head": head(read_at_us=late)}), now=late)
    assert by_id(after, silent).call.effect is None, "nothing new there: no need to look again"


def test_a_head_that_moved_means_alive() -> None:
    late = NOW + 120 * S
    silent = node(R, heard_at_us=NOW, surveyed_at_us=late)
    moved = head(step=150, seen_at_us=late - S)
    after, _ = settle(view(silent, job={"head": moved}), now=late)
    assert by_id(after, silent).state is R


def test_success_is_a_final_head_and_nothing_less() -> None:
    exited = node(R, exit_code=0, exited_at_us=NOW)
    after, _ = settle(view(exited, job={"head": head()}))
    assert after.job.outcome is None
    assert by_id(after, exited).call.effect is EffectKind.READ_HEAD
    after, plan = settle(view(exited, job={"head": head(final=True, read_at_us=NOW)}))
    assert after.job.outcome is Outcome.SUCCEEDED
    assert by_id(after, exited).state is T
    assert by_id(after, exited).departure.leave_reason is LeaveReason.DONE
    assert "succeeded" in kinds(plan)


def test_an_exit_of_0_without_a_final_head_is_a_crash() -> None:
    exited = node(R, exit_code=0, exited_at_us=NOW - S)
    after, _ = settle(view(exited, job={"head": head(read_at_us=NOW)}))
    assert after.job.backoff.failures == 1
    assert by_id(after, exited).departure.leave_reason is LeaveReason.FAILED


def test_a_crash_spends_the_budget_and_backs_off() -> None:
    crashed = node(R, exit_code=1, exited_at_us=NOW)
    after, plan = settle(view(crashed))
    assert after.job.backoff.failures == 1
    assert after.job.outcome is None
    assert len(after.nodes) == 1, "not placed before the backoff is over"
    assert plan.wake_at_us == NOW + 5 * S
    after, _ = settle(replace(after), now=NOW + 5 * S)
    assert after.nodes[1].generation == 2


@pytest.mark.parametrize(("failures", "outcome"), [(2, None), (3, Outcome.FAILED)])
def test_the_budget_is_max_restarts_on_errors(failures: int, outcome: Outcome | None) -> None:
    crashed = node(R, exit_code=1, exited_at_us=NOW)
    after, _ = settle(view(crashed, job={"failures": failures}))
    assert after.job.outcome is outcome


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({}, "at step 10; tried again in 5 s, then 2 more"),
        ({"failures": 2}, "at step 10; tried again in 20 s, then 0 more"),
        ({"failures": 3}, "at step 10"),
        ({"first_step_at_us": 0}, "at step 10"),
        (
            {"spec": spec(recover_on_exit_codes=(1,))},
            "at step 10; tried again in 5 s, not counted (recover_on_exit_codes)",
        ),
    ],
    ids=["first", "last", "used up", "before its first step", "free"],
)
def test_a_crash_promises_no_restart_that_does_not_come(job: dict[str, Any], said: str) -> None:
    crashed = node(R, exit_code=1, exited_at_us=NOW, last_step=10)
    _, plan = settle(view(crashed, job=job))
    (text,) = (event.text for event in plan.events if event.kind == "crashed")
    assert text.endswith(said)


def test_a_listed_exit_code_is_retried_without_a_charge() -> None:
    crashed = node(R, exit_code=42, exited_at_us=NOW)
    after, _ = settle(view(crashed, job={"failures": 3, "spec": spec(recover_on_exit_codes=(42,))}))
    assert after.job.backoff.failures == 3
    assert after.job.outcome is None


def test_a_crash_before_the_first_step_ever_is_not_tried_again() -> None:
    crashed = hello(chosen=True, started_at_us=NOW, exit_code=1, exited_at_us=NOW)
    after, _ = settle(view(crashed, job={"first_step_at_us": 0}))
    assert after.job.outcome is Outcome.FAILED
    assert by_id(after, crashed).state is T


@pytest.mark.parametrize("code", [75, 76])
def test_release_and_fence_are_never_charged(code: int) -> None:
    after, _ = settle(view(node(R, exit_code=code, exited_at_us=NOW, failed_part="nothing")))
    assert after.job.backoff.failures == 0
    assert after.job.outcome is None
    assert after.nodes[1].generation == 2


def test_keep_on_failure_keeps_the_failed_machine_for_its_user() -> None:
    crashed = node(R, exit_code=1, exited_at_us=NOW)
    job = {"spec": spec(max_restarts_on_errors=0, keep_on_failure_s=600.0)}
    after, plan = settle(view(crashed, job=job))
    assert after.job.outcome is Outcome.FAILED
    assert by_id(after, crashed).state is R
    assert plan.wake_at_us == NOW + 600 * S
    after, _ = settle(after, now=NOW + 600 * S)
    assert by_id(after, crashed).state is T


def test_cancel_saves_a_running_node_and_is_final_only_when_nothing_is_left() -> None:
    running = node(R)
    after, _ = settle(view(running, job={"desired": Desired.CANCEL}))
    assert by_id(after, running).state is D
    assert by_id(after, running).call.effect is EffectKind.DRAIN
    assert after.job.outcome is None
    gone = changed(by_id(after, running), gone_at_us=NOW)
    after, _ = settle(replace(after, nodes=(gone,)))
    assert after.job.outcome is Outcome.CANCELLED


def test_cancel_during_a_launch_resolves_the_unknown_before_it_is_final() -> None:
    launching = node(L)
    after, _ = settle(view(launching, job={"desired": Desired.CANCEL}))
    assert by_id(after, launching).state is T
    assert by_id(after, launching).call.effect is EffectKind.RESOLVE
    assert after.job.outcome is None
    adopted = changed(by_id(after, launching), instance_id="i-9", surveyed_at_us=NOW)
    after, _ = settle(replace(after, nodes=(adopted,)))
    assert by_id(after, launching).call.effect is EffectKind.TERMINATE


def test_pause_stops_and_resume_places_again() -> None:
    after, _ = settle(view(node(R), job={"desired": Desired.PAUSE}))
    assert after.nodes[0].state is D
    gone = changed(after.nodes[0], gone_at_us=NOW)
    after, _ = settle(replace(after, nodes=(gone,)))
    assert after.job.outcome is None
    assert len(after.nodes) == 1
    resumed = replace(after, job=replace(after.job, desired=Desired.RUN))
    after, _ = settle(resumed)
    assert after.nodes[1].generation == 2


def test_a_drain_that_takes_too_long_is_cut_short() -> None:
    stuck = node(
        D, leave_reason=LeaveReason.CANCELLED, drained_at_us=NOW - 41 * S, told_drain_at_us=NOW
    )
    after, _ = settle(view(stuck, job={"desired": Desired.CANCEL}))
    assert by_id(after, stuck).state is T


def test_max_cost_saves_first_and_stops_then() -> None:
    job = {"spec": spec(max_cost_microusd=5_000_000)}
    after, _ = settle(view(node(R), job=job, spent_microusd=5_000_000))
    assert after.nodes[0].state is D
    assert after.job.outcome is None
    after, _ = settle(replace(after, nodes=(changed(after.nodes[0], gone_at_us=NOW),)))
    assert after.job.outcome is Outcome.FAILED
    assert "max_cost_usd" in after.job.end.outcome_text


def test_max_cost_wakes_when_the_money_will_be_gone() -> None:
    seldom = replace(spec().checkpoint, every_s=3600.0)  # when that is overdue, it wakes too
    job = {"spec": spec(max_cost_microusd=20_000_000, checkpoint=seldom)}
    _, plan = settle(view(node(R), job=job, spent_microusd=10_000_000))
    assert plan.wake_at_us == NOW + 3600 * S, "10 dollars left at 10 dollars an hour"


@pytest.mark.req("RPV-12")
def test_max_duration_ends_the_job() -> None:
    after, _ = settle(view(job={"spec": spec(max_duration_s=60.0)}))
    assert after.job.outcome is Outcome.FAILED


def test_a_machine_that_never_says_hello_is_given_back() -> None:
    late = node(B, host="h", requested_at_us=NOW - 900 * S, effect_error="SSH refused")
    after, _ = settle(view(late))
    assert by_id(after, late).departure.leave_reason is LeaveReason.BOOT_TIMEOUT
    assert "SSH refused" in by_id(after, late).departure.leave_text
    assert after.nodes[-1].offer == OFFERS[1], "the next one is asked of somebody else"


@pytest.mark.parametrize("on_record", [False, True])
def test_one_end_of_a_machine_cools_its_offer_once(on_record: bool) -> None:
    """In the pass that decides it as in all later ones: no longer by what is on record as well."""
    left = node(T, leave_reason=LeaveReason.LOST, left_at_us=NOW)
    known = Refusal(left.offer.key, Scope.OFFER, "Lost", NOW, left.id)
    refusals = (known,) if on_record else ()
    _, plan = settle(view(left), market(OFFERS[:1], refusals=refusals))
    assert "the only offer that fits is out" in plan.reason
    assert "for 120 s more after Lost" in plan.reason


def test_a_gang_leaves_together() -> None:
    job = {"spec": spec(num_nodes=2)}
    gone, mate = node(R, rank=0, gone_at_us=NOW), node(R, rank=1)
    after, _ = settle(view(gone, mate, job=job))
    assert by_id(after, mate).state is T
    assert sum(n.generation == 2 for n in after.nodes) == 2
    noticed = node(R, rank=0, notices=(notice(),))
    after, _ = settle(view(noticed, mate, job=job))
    assert by_id(after, mate).state is D


def test_a_rank_that_drains_for_its_mates_notice_has_had_none_withdrawn() -> None:
    job = {"spec": spec(num_nodes=2)}
    noticed, mate = node(R, rank=0, notices=(notice(),)), node(R, rank=1)
    drained, _ = settle(view(noticed, mate, job=job))
    again, plan = settle(drained)
    assert plan.changes == ()
    assert again.nodes == drained.nodes, "no replacement is given back and asked for again"
    first = replace(by_id(drained, noticed), notices=(notice(withdrawn=True),))
    back, _ = settle(replace(drained, nodes=(first, *drained.nodes[1:])))
    assert [by_id(back, member).state for member in (noticed, mate)] == [R, R]


def test_a_gang_is_not_taken_back_when_one_rank_has_released() -> None:
    drain = {"leave_reason": LeaveReason.PREEMPTED, "drained_at_us": NOW}
    first = node(D, rank=0, notices=(notice(withdrawn=True),), **drain)
    second = node(D, rank=1, released_at_us=NOW, exit_code=75, exited_at_us=NOW, **drain)
    after, _ = settle(view(first, second, job={"spec": spec(num_nodes=2)}))
    assert (by_id(after, first).state, by_id(after, first).call.effect) == (D, EffectKind.RELEASE)
    assert sum(n.generation == 2 for n in after.nodes) == 2


def test_a_rank_whose_mate_has_released_is_told_to_and_has_its_grace() -> None:
    drain = {"leave_reason": LeaveReason.PREEMPTED, "drained_at_us": NOW}
    first = node(D, rank=0, **drain)
    second = node(D, rank=1, exit_code=75, exited_at_us=NOW, notices=(notice(),), **drain)
    replacement = node(L, generation=2, offer=OFFERS[1])
    job = {"spec": spec(num_nodes=2, stop_grace_s=30.0)}
    after, _ = settle(view(first, second, replacement, job=job))
    assert by_id(after, second).state is T
    assert (by_id(after, first).state, by_id(after, first).call.effect) == (D, EffectKind.RELEASE)
    gone = replace(after, nodes=tuple(n for n in after.nodes if n.id != second.id))
    after, _ = settle(gone)
    assert by_id(after, first).call.effect is EffectKind.RELEASE, (
        "also when the mate is out of sight"
    )
    told = changed(first, told_release_at_us=NOW)
    after, plan = settle(view(told, second, replacement, job=job))
    assert by_id(after, first).state is D
    assert plan.wake_at_us <= NOW + 40 * S
    after, _ = settle(view(told, replacement, job=job), now=NOW + 40 * S)
    assert by_id(after, first).state is T, "nobody waits for ever"


def test_a_crash_of_several_ranks_is_charged_once() -> None:
    gang = [node(R, rank=rank, exit_code=1, exited_at_us=NOW) for rank in range(2)]
    after, _ = settle(view(*gang, job={"spec": spec(num_nodes=2)}))
    after, _ = settle(after, now=NOW + 15 * S)
    assert after.job.backoff.failures == 1
    assert [by_id(after, member).state for member in gang] == [T, T]


def scripts_that_ended(*ranks: int, **fields: Any) -> tuple[View, tuple[Node, Node]]:
    """A gang of two scripts of which `ranks` exited 0; `fields` of rank 0 and of the job."""
    job = {"head": head(), **fields.pop("job", {})}
    store = CheckpointSpec(store="file:///ckpt", engine="none")
    done = {"exit_code": 0, "exited_at_us": NOW - S}
    first = node(R, **(done if 0 in ranks else {}), **fields)
    second = node(R, rank=1, **(done if 1 in ranks else {}))
    job |= {"spec": spec(num_nodes=2, checkpoint=store)}
    return view(first, second, job=job), (first, second)


@pytest.mark.parametrize("ranks", [(0,), (1,)])
def test_a_gang_of_scripts_is_waited_for_until_its_last_rank_exits(ranks: tuple[int]) -> None:
    before, gang = scripts_that_ended(*ranks, job={"head": head(read_at_us=NOW)})
    after, _ = settle(before)
    assert after.job.backoff.failures == 0
    assert [by_id(after, member) for member in gang] == list(gang)


def test_when_all_ranks_exited_0_rank_0_says_so_in_head_and_head_is_read() -> None:
    before, (first, second) = scripts_that_ended(0, 1)
    after, _ = settle(before)
    assert by_id(after, first).call.effect is EffectKind.SAVE
    assert by_id(after, second).call.effect is None
    before, (first, _) = scripts_that_ended(0, 1, told_save_at_us=NOW)
    after, _ = settle(before)
    assert by_id(after, first).call.effect is EffectKind.READ_HEAD
    final = head(final=True, read_at_us=NOW)
    before, _ = scripts_that_ended(0, 1, told_save_at_us=NOW, job={"head": final})
    after, _ = settle(before)
    assert after.job.outcome is Outcome.SUCCEEDED


def test_a_gang_whose_success_cannot_be_committed_is_tried_again() -> None:
    before, gang = scripts_that_ended(0, 1, effect_error="LinkError: no agent answers")
    after, plan = settle(before, now=NOW + 60 * S)
    assert after.job.backoff.failures == 1
    assert "no agent answers" in plan.events[0].text
    assert by_id(after, gang[0]).departure.leave_reason is LeaveReason.FAILED


@pytest.mark.req("ELA-07")
def test_an_incomplete_gang_is_given_back() -> None:
    said = {"launch_error": "no", "launch_error_code": "CapacityError", "gone_at_us": NOW}
    refused = node(L, rank=0, **said)
    mate = node(L, rank=1)
    after, _ = settle(view(refused, mate, job={"spec": spec(num_nodes=2)}))
    assert by_id(after, mate).state is T


def test_a_restored_database_does_not_reuse_a_generation() -> None:
    after, _ = settle(view(job={"head": head(generation=7)}))
    assert after.job.generation == 8


def test_everything_cooling_waits_for_the_first_to_come_free() -> None:
    refusals = tuple(Refusal(o.key, Scope.OFFER, "CapacityError", NOW) for o in OFFERS)
    after, plan = settle(view(), market(refusals=refusals))
    assert after.nodes == ()
    assert plan.wake_at_us == NOW + 60 * S
    assert "4 offers" in plan.reason


def test_of_all_that_is_out_the_first_to_come_free_is_told() -> None:
    times = (5, 1, 3)
    spoiled = zip(OFFERS[1:], times, strict=True)
    refusals = [Refusal(o.key, Scope.OFFER, "CapacityError", NOW + at * S) for o, at in spoiled]
    capped = OFFERS[0]  # it will not pass by itself
    job = {"spec": spec(max_hourly_microusd=20_000_000)}
    dear = replace(capped, price_microusd_per_h=21_000_000)
    _, plan = settle(view(job=job), market((dear, *OFFERS[1:]), refusals=tuple(refusals)))
    assert f"{OFFERS[2].key}: cooling for 61 s more after CapacityError" in plan.reason
    assert plan.wake_at_us == NOW + 61 * S


def test_a_limit_in_the_way_waits_and_says_so() -> None:
    after, plan = settle(view(), market(blocked="limits.max_nodes of 1 is reached"))
    assert after.nodes == ()
    assert "max_nodes" in plan.reason
    assert plan.wake_at_us > NOW


def test_a_call_in_flight_is_not_repeated_and_a_lost_one_is() -> None:
    after, _ = settle(view())
    again, _ = settle(after)
    assert again.nodes == after.nodes
    late, _ = settle(after, now=NOW + 16 * S)
    assert late.nodes[0].call.effect_armed_at_us == NOW + 16 * S


def test_a_failed_call_is_repeated_after_its_pause() -> None:
    armed = {"effect": EffectKind.BOOT, "effect_armed_at_us": NOW - S}
    failed = {"effect_due_at_us": NOW + 59 * S, "effect_failed_at_us": NOW, "effect_failures": 2}
    booting = node(B, host="h", **armed, **failed)
    after, plan = settle(view(booting))
    assert after.nodes[0].call.effect_armed_at_us == NOW - S
    assert plan.wake_at_us == NOW + S // 2
    after, _ = settle(after, now=NOW + S // 2)
    assert after.nodes[0].call.effect_armed_at_us == NOW + S // 2


def test_terminate_is_repeated_until_the_cloud_no_longer_lists_it() -> None:
    ending = node(
        T, leave_reason=LeaveReason.DONE, terminated_at_us=NOW - 61 * S, surveyed_at_us=NOW
    )
    after, _ = settle(view(ending, job={"outcome": Outcome.SUCCEEDED}))
    assert after.nodes[0].call.effect is EffectKind.TERMINATE
    after, _ = settle(view(changed(ending, gone_at_us=NOW), job={"outcome": Outcome.SUCCEEDED}))
    assert after.nodes[0].state is G


def test_a_node_preempted_before_it_trains_is_replaced_without_a_drain() -> None:
    booting = hello(chosen=True, notices=(notice(),), started_at_us=NOW)
    after, _ = settle(view(booting))
    assert by_id(after, booting).state is T
    assert after.nodes[1].offer == OFFERS[1]


def test_an_ended_job_keeps_nothing() -> None:
    after, _ = settle(view(node(R), job={"outcome": Outcome.SUCCEEDED}))
    assert after.nodes[0].state is T


def test_ordered_alternatives_beat_a_cheaper_offer() -> None:
    dear = offer("gcp-1a", 50)
    wants = (
        replace(spec().resources.alternatives[0], cloud="gcp"),
        spec().resources.alternatives[0],
    )
    after, _ = settle(
        view(job={"spec": spec(ordered=True, alternatives=wants)}), market((OFFERS[0], dear))
    )
    assert after.nodes[0].offer == dear
