"""What was observed, as states: refusals that came late, and the ranks of a gang."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spotd.model import CheckpointSpec, Desired, EffectKind, LeaveReason, Node, Outcome, S
from spotd.states import NodeState
from tests.spotd.decide.build import NOW, by_id, hello, kinds, node, notice, settle, spec, view

L, B, R, D, T, G = NodeState
FINAL = {"gone_at_us": NOW, "launch_error": "no such image"}


@pytest.mark.parametrize("state", [L, B])
def test_a_create_that_failed_late_is_a_refusal_and_no_loss(state: NodeState) -> None:
    failed = node(state, **FINAL, launch_error_code="CapacityError")
    after, plan = settle(view(failed))
    gone = by_id(after, failed)
    assert (gone.state, gone.leave_reason) == (G, LeaveReason.CAPACITY)
    assert gone.leave_text == "no such image"
    assert "refused" in kinds(plan)
    assert "lost" not in kinds(plan)


@pytest.mark.parametrize("state", [L, B])
def test_a_request_that_is_rejected_late_fails_the_job(state: NodeState) -> None:
    after, _ = settle(view(node(state, **FINAL, launch_error_code="RejectedError")))
    assert after.job.outcome is Outcome.FAILED
    assert "no such image" in after.job.outcome_text


def test_a_machine_that_trained_is_lost_whatever_the_cloud_calls_it() -> None:
    training = node(R, **FINAL, launch_error_code="RejectedError")
    after, plan = settle(view(training))
    assert by_id(after, training).leave_reason is LeaveReason.LOST
    assert "lost" in kinds(plan)
    assert after.job.outcome is None


def test_a_cancelled_job_does_not_fail_for_a_rejection() -> None:
    rejected = node(L, **FINAL, launch_error_code="RejectedError")
    after, _ = settle(view(rejected, job={"desired": Desired.CANCEL}))
    assert after.job.outcome is Outcome.CANCELLED


# --- the ranks of a gang: rank 0 speaks for all that use our engine

GANG = {"spec": spec(num_nodes=2)}
SCRIPTS = {"spec": spec(num_nodes=2, checkpoint=CheckpointSpec("file:///ckpt", "none"))}


def stepping(rank: int, **fields: Any) -> Node:
    """Of a gang whose rank 0 has just reported its first step."""
    started = {"chosen": True, "started_at_us": NOW - 40 * S, "ready_at_us": NOW - 9 * S}
    if rank == 0:
        started |= {"claimed_at_us": NOW - 5 * S, "first_step_at_us": NOW - S, "last_step": 10}
    return hello(rank=rank, **(started | fields))


def test_the_first_step_of_rank_0_makes_its_gang_running() -> None:
    after, plan = settle(view(stepping(1), stepping(0), job=GANG))
    assert [n.state for n in after.nodes] == [R, R]
    assert kinds(plan) == ["training"], "told once"


@pytest.mark.parametrize(
    ("mate", "job"),
    [
        (stepping(1, started_at_us=0), GANG),
        (stepping(1, chosen=False), GANG),
        (stepping(1), SCRIPTS),
    ],
    ids=["not-started", "not-chosen", "a-script-speaks-for-itself"],
)
def test_a_rank_that_need_not_train_yet_does_not(mate: Node, job: dict[str, Any]) -> None:
    before = view(stepping(0), mate, job=job)
    assert by_id(settle(before)[0], mate).state is B


def test_a_gang_that_is_paused_saves_with_all_its_ranks() -> None:
    job = GANG | {"desired": Desired.PAUSE}
    after, _ = settle(view(stepping(0), stepping(1), job=job))
    assert [n.state for n in after.nodes] == [D, D]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_notice_for_one_rank_drains_the_gang(rank: int) -> None:
    gang = [stepping(r, notices=(notice(),) if r == rank else ()) for r in (0, 1)]
    before, _ = settle(view(*gang, job=GANG))
    assert [by_id(before, n).state for n in gang] == [D, D]
    assert len(before.nodes) == 4, "a replacement is on its way"
    # The replacement is chosen while the old gang drains: one rank, one chosen node.
    seen = {"instance_id": "i", "host": "h", "booted_at_us": NOW, "hello_at_us": NOW}
    ready = [replace(n, **seen) if n.generation == 2 else n for n in before.nodes]
    after, _ = settle(replace(before, nodes=tuple(ready)))
    for number in (0, 1):
        alive = [n for n in after.nodes if n.chosen and n.rank == number and n.state in (B, R)]
        assert [n.generation for n in alive] == [2]


def test_a_save_is_asked_of_rank_0_alone() -> None:
    job = GANG | {"save_wanted_at_us": NOW}
    after, _ = settle(view(node(R), node(R, rank=1), job=job))
    assert [n.effect for n in after.nodes] == [EffectKind.SAVE, None]


# --- exit 75: a stop was obeyed, or a script has ended with that number by itself


@pytest.mark.parametrize(
    ("engine", "fields", "reason", "text"),
    [
        ("spotd", {"released_at_us": NOW}, LeaveReason.PREEMPTED, "saved at step 10 and released"),
        ("spotd", {}, LeaveReason.PREEMPTED, "stopped as it was told"),
        ("none", {"released_at_us": NOW}, LeaveReason.PREEMPTED, "saved at step 10 and released"),
        ("none", {"state": D, "drained_at_us": NOW}, LeaveReason.PREEMPTED, "stopped as it was"),
        ("none", {"notices": (notice(),)}, LeaveReason.PREEMPTED, "stopped as it was told"),
        ("none", {}, LeaveReason.FAILED, "the program exited with code 75"),
    ],
)
def test_75_without_a_stop_is_a_crash_of_a_script(
    engine: str, fields: dict[str, Any], reason: LeaveReason, text: str
) -> None:
    fields = dict(fields)
    left = {"exit_code": 75, "exited_at_us": NOW, "last_step": 10}
    ran = node(fields.pop("state", R), **left, **fields)
    job = {"spec": spec(checkpoint=CheckpointSpec("file:///ckpt", engine)), "first_step_at_us": 1}
    after, _ = settle(view(ran, job=job))
    settled = by_id(after, ran)
    assert settled.leave_reason is reason
    assert text in settled.leave_text
    assert after.job.failures == (reason is LeaveReason.FAILED)
