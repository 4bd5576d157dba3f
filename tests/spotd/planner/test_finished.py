"""A program that ended, or a create in doubt: what is asked before that counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spotd.domain.fast_replace import changed
from spotd.domain.node import EffectKind, Node
from spotd.domain.states import LeaveReason, NodeState, Outcome
from spotd.domain.units import S
from spotd.planner.core.next_effect import end_unread, need
from spotd.planner.core.plan_builder import PlanBuilder
from spotd.planner.rules.apply_observations import settle_observed
from tests.spotd.planner.build import NOW, head, hello, market, node, settle, spec, view

R = NodeState.RUNNING
D, T, G = NodeState.DRAINING, NodeState.TERMINATING, NodeState.GONE
READ, SAVE = EffectKind.READ_HEAD, EffectKind.SAVE
EXITED = NOW - 10 * S
DONE: dict[str, Any] = {"exit_code": 0, "exited_at_us": EXITED}
NONE = replace(spec().checkpoint, engine="none")
SCRIPTS: dict[str, Any] = {"spec": spec(num_nodes=2, checkpoint=NONE)}


def draft(*nodes: Node, **fields: Any) -> PlanBuilder:
    return PlanBuilder(view(*nodes, **fields), market(), NOW)


# --- a crash after a release


@pytest.mark.parametrize("state", ["booting", "running", "draining"])
def test_head_is_read_after_a_crash_that_may_have_come_after_the_final_manifest(state: str) -> None:
    crash: dict[str, Any] = {"exit_code": 1, "exited_at_us": EXITED}
    ended = {
        "booting": hello(chosen=True, started_at_us=NOW - 20 * S, **crash),
        "running": node(R, **crash),
        "draining": node(D, leave_reason=LeaveReason.CANCELLED, told_drain_at_us=1, **crash),
    }[state]
    for read_us, wanted in ((EXITED - 1, READ), (NOW, None)):
        released = {"head": head(released=True, read_at_us=read_us)}
        assert need(ended, view(ended, job=released), market(), NOW) is wanted


# --- exit 0


@pytest.mark.parametrize(
    ("job", "wanted"),
    [
        ({}, READ),
        ({"head": head(read_at_us=EXITED - 1)}, READ),
        ({"head": head(read_at_us=EXITED)}, None),
        ({"head": head(final=True)}, None),
    ],
    ids=["never read", "read before", "read since", "final"],
)
@pytest.mark.parametrize("state", ["booting", "running", "draining"])
def test_head_is_read_after_an_exit_of_0(state: str, job: Any, wanted: EffectKind | None) -> None:
    """Also of one that ended before its first step was heard of."""
    left = {"leave_reason": LeaveReason.PREEMPTED, "told_release_at_us": NOW - 11 * S}
    ended = {
        "booting": hello(chosen=True, started_at_us=NOW - 20 * S, **DONE),
        "running": node(R, **DONE),
        "draining": node(D, **left, **DONE),
    }[state]
    assert need(ended, view(ended, job=job), market(), NOW) is wanted


@pytest.mark.parametrize(
    ("fields", "job", "unread"),
    [
        ({}, {}, True),
        ({}, {"head": head(read_at_us=EXITED - 1)}, True),
        ({}, {"head": head(read_at_us=EXITED)}, False),
        ({}, {"head": head(final=True, read_at_us=EXITED - 1)}, False),
        ({}, {"outcome": Outcome.FAILED}, False),
        ({"exit_code": 1}, {}, False),
        ({"exit_code": 1}, {"head": head(released=True, read_at_us=EXITED - 1)}, True),
        ({"chosen": False}, {}, False),
        ({"rank": 1}, {"spec": spec(num_nodes=2)}, False),
        ({}, {"spec": spec(num_nodes=2)}, True),
        ({}, SCRIPTS, False),
        ({}, {"spec": spec(checkpoint=NONE)}, True),
    ],
)
@pytest.mark.parametrize("newest", [True, False])
def test_until_head_was_read_nobody_knows_whether_the_job_has_ended(
    fields: dict[str, Any], job: dict[str, Any], unread: bool, newest: bool
) -> None:
    gone = node(G, **({"chosen": True} | DONE | fields))
    seen = view(gone, job={"generation": 1 if newest else 2} | job)
    assert end_unread(gone, seen) is unread
    assert need(gone, seen, market(), NOW) is (READ if unread and newest else None)


@pytest.mark.parametrize(
    ("told_us", "seen", "now", "wanted"),
    [
        (0, None, NOW, SAVE),
        (EXITED, None, NOW, SAVE),  # told before the last rank had ended
        (EXITED + 1, None, NOW, READ),
        (EXITED + 1, head(read_at_us=EXITED + 1, seen_at_us=0), EXITED + S, None),
        (EXITED + 1, head(read_at_us=EXITED, seen_at_us=0), EXITED + S, READ),
        (EXITED + 1, head(read_at_us=EXITED + 5, seen_at_us=EXITED + 6), EXITED + S, READ),
        (EXITED + 1, head(read_at_us=EXITED + S, seen_at_us=0), EXITED + 6 * S - 1, None),
        (EXITED + 1, head(read_at_us=EXITED + S, seen_at_us=0), EXITED + 6 * S, READ),
    ],
)
def test_rank_0_of_a_gang_of_scripts_is_told_and_head_read_then(
    told_us: int, seen: Any, now: int, wanted: EffectKind | None
) -> None:
    first = node(R, **DONE, told_save_at_us=told_us)
    second = node(R, rank=1, **DONE)
    both = view(first, second, job=SCRIPTS | {"head": seen})
    assert need(first, both, market(), now) is wanted
    assert need(second, both, market(), now) is None, "rank 0 speaks for both"


@pytest.mark.parametrize("state", [NodeState.BOOTING, D])
def test_scripts_that_ended_have_finished_in_whichever_state(state: NodeState) -> None:
    """Before they were seen to train, or while they were to stop."""
    ended = {"chosen": True, "started_at_us": NOW - 20 * S, **DONE}
    if state is D:
        ended |= {"leave_reason": LeaveReason.PREEMPTED, "told_release_at_us": NOW - S}
    else:
        ended |= {"host": "h", "booted_at_us": NOW - 30 * S, "hello_at_us": NOW - 29 * S}
    first, second = node(state, **ended), node(state, rank=1, **ended)
    both = view(first, second, job=SCRIPTS)
    assert need(first, both, market(), NOW) is SAVE
    told = changed(first, told_save_at_us=NOW)
    both = view(told, second, job=SCRIPTS | {"head": head(read_at_us=NOW, seen_at_us=0)})
    assert need(told, both, market(), NOW + S) is None
    assert need(told, both, market(), NOW + 5 * S) is READ


def test_a_reading_of_the_very_moment_of_the_exit_counts() -> None:
    after, _ = settle(view(node(R, **DONE), job={"head": head(read_at_us=EXITED)}))
    assert after.job.backoff.failures == 1


# --- a create in doubt


@pytest.mark.parametrize(
    ("mate", "stopped"),
    [(None, True), (node(T, candidate=1), True), (node(R, candidate=1), False)],
    ids=["alone", "all leave", "another is there"],
)
def test_a_rejection_in_doubt_counts_when_nothing_came_of_it(
    mate: Node | None, stopped: bool
) -> None:
    """And no other cloud took the request."""
    rejected = {"launch_error": "no such image", "launch_error_code": "RejectedError"}
    doubtful = node(T, leave_reason=LeaveReason.CAPACITY, gone_at_us=NOW, **rejected)
    d = draft(doubtful, *([mate] if mate else []))
    settle_observed(d)
    assert bool(d.job.end.stop_text) is stopped
    d = draft(changed(doubtful, leave_reason=LeaveReason.LOST))
    settle_observed(d)
    assert not d.job.end.stop_text, "it was not a refusal"


@pytest.mark.parametrize(
    ("effect", "wanted"), [(EffectKind.LAUNCH, EffectKind.RESOLVE), (EffectKind.RESOLVE, None)]
)
def test_a_lookup_waits_for_the_last_lookup_and_for_no_other_call(
    effect: EffectKind, wanted: EffectKind | None
) -> None:
    doubtful = node(T, instance_id="", launched_at_us=0, effect=effect, effect_armed_at_us=NOW - S)
    assert need(doubtful, view(doubtful), market(), NOW) is wanted
