"""Limits of money and time, to the micro-dollar, and what an ended job keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spotd.domain.events import Severity
from spotd.domain.job import Attempt, Desired
from spotd.domain.node import Node
from spotd.domain.plan import Plan
from spotd.domain.preferences import NO_LIMIT, Caps
from spotd.domain.states import LeaveReason, NodeState, Outcome
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.planner.core.plan_builder import PlanBuilder
from spotd.planner.rules.apply_observations import settle_exits
from spotd.planner.rules.finish_job import RANK_EXIT_S, clean_up, obey_limits, stop_wanted
from spotd.planner.rules.replace_node import drain_noticed, keep_gang
from spotd.wire import EXIT_FINISHED
from tests.spotd.planner.build import (
    JOB,
    NOW,
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

R, D, T = NodeState.RUNNING, NodeState.DRAINING, NodeState.TERMINATING
EXITED = NOW - 10 * S
DONE: dict[str, Any] = {"exit_code": 0, "exited_at_us": EXITED}


def draft(*nodes: Node, **fields: Any) -> PlanBuilder:
    return PlanBuilder(view(*nodes, **fields), market(), NOW)


@pytest.mark.parametrize(("left", "stopped"), [(1, False), (0, True), (-1, True)])
def test_the_last_micro_dollar_may_be_spent(left: int, stopped: bool) -> None:
    d = draft(node(R), job={"spec": spec(max_cost_microusd=1000 + left)}, spent_microusd=1000)
    obey_limits(d)
    assert bool(d.job.end.stop_text) is stopped
    assert (d.plan().wake_at_us > NOW) is not stopped


@pytest.mark.parametrize("limit", [{"max_cost_microusd": 1000}, {"max_duration_s": 1.0}])
def test_what_has_finished_is_stopped_by_no_limit(limit: dict[str, Any]) -> None:
    """Both are seen in one pass: the money was enough."""
    job = {"spec": spec(**limit), "head": head(final=True, read_at_us=NOW)}
    after, _ = settle(view(node(R, **DONE), job=job, spent_microusd=1000))
    assert (after.job.outcome, after.job.end.stop_text) == (Outcome.SUCCEEDED, "")


def test_nobody_is_told_that_a_cancelled_job_trains_on_for_a_notice() -> None:
    """Both come in one pass: it saves and leaves, as it would have without the notice."""
    noticed = node(R, notices=(notice(),))
    after, plan = settle(view(noticed, job={"desired": Desired.CANCEL}))
    assert [n.departure.leave_reason for n in after.nodes] == [LeaveReason.CANCELLED]
    assert "notice" not in kinds(plan)


def test_what_was_spent_since_the_view_was_loaded_counts() -> None:
    """A quarter of an hour at ten dollars; a view from the future counts for nothing."""
    job = {"spec": spec(max_cost_microusd=10_000_000)}
    d = draft(node(R), job=job, spent_microusd=1_000_000, loaded_at_us=NOW - 900 * S)
    obey_limits(d)
    assert d.plan().wake_at_us == NOW + 2340 * S, "6.50 dollars more"
    d = draft(node(R), job=job, spent_microusd=0, loaded_at_us=NOW + 900 * S)
    obey_limits(d)
    assert d.plan().wake_at_us == NOW + 3600 * S


@pytest.mark.parametrize("job", [{"outcome": Outcome.FAILED}, {"stop_text": "cancelled"}])
def test_what_has_ended_or_stops_has_no_limits(job: dict[str, Any]) -> None:
    d = draft(node(R), job={"spec": spec(max_duration_s=1.0)} | job)
    obey_limits(d)
    assert d.job.end.stop_text == job.get("stop_text", "")


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (Outcome.SUCCEEDED, LeaveReason.DONE),
        (Outcome.FAILED, LeaveReason.CANCELLED),
        (Outcome.CANCELLED, LeaveReason.CANCELLED),
    ],
)
def test_what_an_ended_job_gives_back_is_done_only_when_it_succeeded(
    outcome: Outcome, reason: LeaveReason
) -> None:
    d = draft(node(R), job={"outcome": outcome, "outcome_text": "over"})
    clean_up(d)
    assert d.nodes[0].departure.leave_reason is reason


@pytest.mark.parametrize(("until_us", "state"), [(NOW + 1, R), (NOW, T)])
def test_a_machine_is_kept_until_its_time_and_no_longer(until_us: int, state: NodeState) -> None:
    failed = node(R, exit_code=1, exited_at_us=EXITED, kept_until_us=until_us)
    job = {"outcome": Outcome.FAILED, "outcome_text": "over"}
    after, _ = settle(view(failed, job=job))
    assert after.nodes[0].state is state
    after, _ = settle(view(failed, job=job | {"desired": Desired.CANCEL}))
    assert after.nodes[0].state is T


@pytest.mark.parametrize(("until_us", "state"), [(NOW + 1, D), (NOW, T)])
def test_a_drain_of_a_kept_machine_is_cut_short_when_it_is_kept_no_longer(
    until_us: int, state: NodeState
) -> None:
    late = node(
        D,
        leave_reason=LeaveReason.CANCELLED,
        drained_at_us=NOW - 9000 * S,
        kept_until_us=until_us,
    )
    d = draft(late)
    drain_noticed(d)
    assert d.nodes[0].state is state


@pytest.mark.parametrize(("until_us", "state"), [(NOW + 1, R), (NOW, T)])
def test_a_failed_machine_is_kept_to_the_moment(until_us: int, state: NodeState) -> None:
    failed = node(R, exit_code=1, exited_at_us=EXITED, kept_until_us=until_us)
    d = draft(failed, job={"stop_text": "used up"})
    settle_exits(d)
    assert d.nodes[0].state is state


@pytest.mark.parametrize(("until_us", "kept"), [(NOW + 1, True), (NOW, False)])
def test_every_rule_keeps_a_machine_to_the_same_moment(until_us: int, kept: bool) -> None:
    trains = node(R, kept_until_us=until_us)
    boots = hello(generation=2, kept_until_us=until_us)
    d = draft(trains, boots, job={"desired": Desired.PAUSE})
    stop_wanted(d)
    assert [n.state for n in d.nodes] == ([R, boots.state] if kept else [D, T])
    d = draft(trains, job={"outcome": Outcome.FAILED, "outcome_text": "over"})
    clean_up(d)
    assert (d.nodes[0].state is R) is kept
    mates = [node(T, leave_reason=LeaveReason.LOST), replace(trains, id="mate", rank=1)]
    d = draft(*mates, job={"spec": spec(num_nodes=2)})
    keep_gang(d)
    assert (d.nodes[1].state is R) is kept


def test_who_has_nothing_to_say_says_so() -> None:
    assert draft().plan().reason == "nothing to do"
    assert draft().plan().reasons == ()


def test_a_time_that_has_passed_is_looked_at_at_once_and_not_in_the_past() -> None:
    d = draft()
    d.wake_at(NOW - S)
    assert d.plan().wake_at_us == NOW + 1


def capped(most: int, *nodes: Node, causes: tuple[str, ...], **job: Any) -> tuple[View, Plan]:
    """A job in an attempt beyond the first, each with its cause."""
    attempts = tuple(Attempt(JOB, n, NOW - 900 * S, why) for n, why in enumerate(causes, 1))
    fields = {"spec": spec(caps=Caps(max_interruptions=most)), "generation": len(causes), **job}
    return settle(view(*nodes, job=fields, attempts=attempts))


@pytest.mark.req("BUD-08")
@pytest.mark.parametrize(
    ("most", "causes", "stopped"),
    [
        (2, ("first", "preempted", "lost"), True),  # and the notice makes three
        (3, ("first", "preempted", "lost"), False),
        (2, ("first", "failed", "lost"), False),  # a crash is not an interruption
        (NO_LIMIT, ("first", "preempted", "lost"), False),
        (0, ("first",), True),
    ],
)
def test_a_job_that_is_taken_away_too_often_saves_and_ends(
    most: int, causes: tuple[str, ...], stopped: bool
) -> None:
    """It drains for its notice as ever, and nobody is asked for another machine."""
    noticed = node(R, generation=len(causes), notices=(notice(),))
    after, plan = capped(most, noticed, causes=causes)
    assert bool(after.job.end.stop_text) is stopped
    assert [n.state for n in after.nodes if n.id == noticed.id] == [D]
    assert ("requested" in kinds(plan)) is not stopped
    if stopped:
        many = sum(cause in ("preempted", "lost") for cause in causes) + 1
        assert after.job.end.stop_text == (
            f"max_interruptions of {most} reached: it was interrupted {many} times"
        )
        assert after.job.outcome is None, "it saves first"
        gone = node(NodeState.GONE, generation=len(causes), leave_reason=LeaveReason.PREEMPTED)
        job = {"stop_text": after.job.end.stop_text, "head": head(step=90)}
        ended, _ = capped(most, gone, causes=causes, **job)
        assert ended.job.outcome is Outcome.FAILED


@pytest.mark.req("BUD-08")
def test_each_cap_stops_by_itself() -> None:
    """Of three: money, the price of an hour (which bars offers), interruptions."""
    running = node(R)
    assert settle(view(running, job={"spec": spec()}))[0].job.end.stop_text == ""
    costly = {"spec": spec(max_cost_microusd=1000)}
    assert (
        "max_cost_usd"
        in settle(view(running, job=costly, spent_microusd=1000))[0].job.end.stop_text
    )
    _, plan = settle(view(job={"spec": spec(max_hourly_microusd=1)}))
    assert "requested" not in kinds(plan)
    assert "requested" in kinds(settle(view(job={"spec": spec()}))[1])


def test_a_program_that_may_have_finished_on_a_lost_machine_is_read_first() -> None:
    done = node(T, **DONE, leave_reason=LeaveReason.LOST, chosen=True)
    after, _ = capped(0, done, causes=("first",), head=head(read_at_us=EXITED - S))
    assert after.job.end.stop_text == ""
    read, _ = capped(0, done, causes=("first",), head=head(read_at_us=EXITED + S))
    assert read.job.end.stop_text != ""


def test_a_success_that_kept_nothing_is_a_warning_and_says_how_to_keep_it() -> None:
    left = "model.pt (1.2 GB) and 3 more files"
    ended = node(R, exit_code=EXIT_FINISHED, exited_at_us=EXITED, exit_tail=left)
    empty = head(step=0, final=True, read_at_us=NOW)
    after, plan = settle(view(ended, job={"head": empty}))
    assert after.job.kept_nothing
    assert after.job.end.outcome_text.startswith(f"nothing kept: the program left {left}; ")
    assert "checkpoint: {mode: directory, path: FOLDER}" in after.job.end.outcome_text
    [event] = [event for event in plan.events if event.kind == "succeeded"]
    assert (event.severity, event.alert, event.data["kept"]) == (Severity.WARNING, True, False)


def test_a_success_with_outputs_says_where_they_are() -> None:
    done = {"head": head(step=0, final=True, read_at_us=NOW), "outputs_at_us": EXITED}
    after, plan = settle(view(node(R, **DONE), job=done))
    assert not after.job.kept_nothing
    assert after.job.end.outcome_text == "finished; its files are stored: spotctl outputs train"
    [event] = [event for event in plan.events if event.kind == "succeeded"]
    assert event.severity is Severity.INFO


def test_a_success_with_a_checkpoint_is_none_that_kept_nothing() -> None:
    after, plan = settle(view(node(R, **DONE), job={"head": head(final=True, read_at_us=NOW)}))
    assert not after.job.kept_nothing
    [event] = [event for event in plan.events if event.kind == "succeeded"]
    assert event.severity is Severity.INFO


@pytest.mark.parametrize(
    ("rank", "waits"),
    [
        ({}, True),
        ({"exit_code": 0, "exited_at_us": NOW}, False),
        ({"link_down_at_us": NOW}, False),
        ({"chosen": False}, False),
    ],
    ids=["trains", "exited", "cut off", "not chosen"],
)
def test_the_other_ranks_may_report_their_end_first(rank: dict[str, Any], waits: bool) -> None:
    """Their last output comes before it; rank 0 answers for them."""
    nodes = node(R, **DONE), node(R, rank=1, **rank)
    job = {"spec": spec(num_nodes=2), "outcome": Outcome.SUCCEEDED, "finished_at_us": NOW}
    for late_us, left in ((0, {T, R} if waits else {T}), (int(RANK_EXIT_S * S), {T})):
        d = PlanBuilder(view(*nodes, job=job), market(), NOW + late_us)
        clean_up(d)
        assert {n.state for n in d.nodes} == left
    d = draft(*nodes, job=job | {"outcome": Outcome.FAILED})
    clean_up(d)
    assert {n.state for n in d.nodes} == {T}
