"""What was observed, as states: refusals that came late, and the ranks of a gang."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spotd.domain.fast_replace import changed
from spotd.domain.job import CheckpointSpec, Desired, HeadSnapshot
from spotd.domain.node import EffectKind, Node
from spotd.domain.plan import ChangeNode
from spotd.domain.states import LeaveReason, NodeState, Outcome
from spotd.domain.units import S
from spotd.planner.offers.cooldowns import refusal_of
from spotd.planner.planner import decide
from spotd.wire import EXIT_FENCED, EXIT_RELEASED, FailedPart
from tests.spotd.planner.build import (
    NOW,
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

L, B, R, D, T, G = NodeState
FINAL = {"gone_at_us": NOW, "launch_error": "no such image"}


@pytest.mark.parametrize("state", [L, B])
def test_a_create_that_failed_late_is_a_refusal_and_no_loss(state: NodeState) -> None:
    failed = node(state, **FINAL, launch_error_code="CapacityError")
    after, plan = settle(view(failed))
    gone = by_id(after, failed)
    assert (gone.state, gone.departure.leave_reason) == (G, LeaveReason.CAPACITY)
    assert gone.departure.leave_text == "no such image"
    assert "refused" in kinds(plan)
    assert "lost" not in kinds(plan)


@pytest.mark.parametrize("state", [L, B])
def test_a_request_that_is_rejected_late_fails_the_job(state: NodeState) -> None:
    after, _ = settle(view(node(state, **FINAL, launch_error_code="RejectedError")))
    assert after.job.outcome is Outcome.FAILED
    assert "no such image" in after.job.end.outcome_text


def test_a_machine_that_trained_is_lost_whatever_the_cloud_calls_it() -> None:
    training = node(R, **FINAL, launch_error_code="RejectedError")
    after, plan = settle(view(training))
    assert by_id(after, training).departure.leave_reason is LeaveReason.LOST
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
    ready = [changed(n, **seen) if n.generation == 2 else n for n in before.nodes]
    after, _ = settle(changed(before, nodes=tuple(ready)))
    for number in (0, 1):
        alive = [n for n in after.nodes if n.chosen and n.rank == number and n.state in (B, R)]
        assert [n.generation for n in alive] == [2]


def test_a_save_is_asked_of_rank_0_alone() -> None:
    job = GANG | {"save_wanted_at_us": NOW}
    after, _ = settle(view(node(R), node(R, rank=1), job=job))
    assert [n.call.effect for n in after.nodes] == [EffectKind.SAVE, None]


# --- exit 75 and 76: as asked or fenced, or a program has ended with that number by itself

ASKED = {"failed_part": FailedPart.NOTHING.value}


@pytest.mark.parametrize(
    ("engine", "fields", "reason", "text"),
    [
        (
            "spotd",
            {"released_at_us": NOW, **ASKED},
            LeaveReason.PREEMPTED,
            "saved at step 10 and released",
        ),
        ("spotd", ASKED, LeaveReason.PREEMPTED, "stopped as ordered"),
        ("spotd", {"notices": (notice(),)}, LeaveReason.PREEMPTED, "stopped as ordered"),
        ("spotd", {}, LeaveReason.FAILED, "the program exited with code 75"),
        ("spotd", {"released_at_us": NOW}, LeaveReason.FAILED, "the program exited with code 75"),
        (
            "none",
            {"released_at_us": NOW, **ASKED},
            LeaveReason.PREEMPTED,
            "stopped and released",
        ),
        ("none", {"state": D, "drained_at_us": NOW}, LeaveReason.PREEMPTED, "stopped as ordered"),
        ("none", {"notices": (notice(),)}, LeaveReason.PREEMPTED, "stopped as ordered"),
        ("none", {}, LeaveReason.FAILED, "the program exited with code 75"),
    ],
)
def test_75_without_a_stop_is_a_crash(
    engine: str, fields: dict[str, Any], reason: LeaveReason, text: str
) -> None:
    fields = dict(fields)
    left = {"exit_code": 75, "exited_at_us": NOW, "last_step": 10}
    ran = node(fields.pop("state", R), **left, **fields)
    job = {"spec": spec(checkpoint=CheckpointSpec("file:///ckpt", engine)), "first_step_at_us": 1}
    after, _ = settle(view(ran, job=job))
    settled = by_id(after, ran)
    assert settled.departure.leave_reason is reason
    assert text in settled.departure.leave_text
    assert after.job.backoff.failures == (reason is LeaveReason.FAILED)
    assert settled.program_failed == (reason is LeaveReason.FAILED)


@pytest.mark.parametrize(
    ("manifest", "text"),
    [
        ("jobs/j0/g1/s20/MANIFEST.json", "saved at step 20 and released"),
        ("", "stopped and released; nothing was saved"),
    ],
)
def test_a_step_is_named_only_if_it_is_saved(manifest: str, text: str) -> None:
    ran = node(R, exit_code=75, exited_at_us=NOW, released_at_us=NOW, last_step=20, **ASKED)
    job = {
        "spec": spec(checkpoint=CheckpointSpec("file:///ckpt", "none", directory="out")),
        "first_step_at_us": 1,
        "head": head(step=20 if manifest else 0, manifest=manifest, released=True),
    }
    after, _ = settle(view(ran, job=job))
    assert by_id(after, ran).departure.leave_text == text


@pytest.mark.parametrize("code", [EXIT_RELEASED, EXIT_FENCED])
def test_a_program_that_always_exits_with_a_code_of_ours_fails_and_blames_no_place(
    code: int,
) -> None:
    ran = node(R, exit_code=code, exited_at_us=NOW)
    failed_once = {"failures": 1, "first_step_at_us": 1, "spec": spec(max_restarts_on_errors=1)}
    after, _ = settle(view(ran, job=failed_once))
    assert after.job.end.stop_text.startswith(f"the program exited with code {code}")
    assert refusal_of(by_id(after, ran)) is None, "nobody's machine is avoided for it"


@pytest.mark.parametrize(("code", "ends"), [(75, False), (76, False), (1, True), (137, True)])
def test_a_program_that_says_to_try_again_is_tried_again_before_its_first_step_too(
    code: int, ends: bool
) -> None:
    """75 and 76 say so; the next machine would see any other mistake at its start again."""
    ran = node(R, exit_code=code, exited_at_us=NOW, first_step_at_us=0)
    job = {"first_step_at_us": 0, "spec": spec(max_restarts_on_errors=1)}
    after, _ = settle(view(ran, job=job))
    assert after.job.backoff.failures == 1
    assert bool(after.job.end.stop_text) == ends


def test_a_code_of_ours_that_the_user_has_listed_is_retried_without_a_charge() -> None:
    ran = node(R, exit_code=76, exited_at_us=NOW)
    listed = {"first_step_at_us": 1, "spec": spec(recover_on_exit_codes=(76,))}
    after, _ = settle(view(ran, job=listed))
    assert (after.job.backoff.failures, after.job.end.stop_text) == (0, "")


def test_76_counts_where_a_newer_attempt_or_the_agent_says_so() -> None:
    ran = node(R, exit_code=76, exited_at_us=NOW)
    for fenced, job in (
        (ran, {"generation": 2}),
        (node(R, exit_code=76, exited_at_us=NOW, **ASKED), {}),
    ):
        after, _ = settle(view(fenced, job={"first_step_at_us": 1, **job}))
        assert by_id(after, fenced).departure.leave_text == "fenced by a newer generation"
        assert after.job.backoff.failures == 0


# --- a crash is charged when neither HEAD nor another machine explains it


CRASHED = {"exit_code": 1, "exited_at_us": NOW}
RELEASED = head(released=True, read_at_us=NOW - 9 * S)


def test_a_crash_after_what_may_be_the_final_manifest_is_charged_when_it_was_not() -> None:
    crashed = node(R, **CRASHED)
    before, _ = settle(view(crashed, job={"head": RELEASED}))
    assert (by_id(before, crashed).state, by_id(before, crashed).call.effect) == (
        R,
        EffectKind.READ_HEAD,
    )
    assert before.job.backoff.failures == 0
    read = replace(RELEASED, read_at_us=NOW + S)
    after, _ = settle(replace(before, job=replace(before.job, head=read)), now=NOW + S)
    assert after.job.backoff.failures == 1
    final = replace(read, final=True)
    after, _ = settle(replace(before, job=replace(before.job, head=final)), now=NOW + S)
    assert (after.job.outcome, after.job.backoff.failures) == (Outcome.SUCCEEDED, 0)
    assert by_id(after, crashed).departure.leave_reason is LeaveReason.DONE


@pytest.mark.parametrize(
    "said", [None, head(), replace(RELEASED, generation=7), replace(RELEASED, read_at_us=NOW)]
)
def test_head_is_not_read_for_a_crash_that_it_cannot_explain(said: HeadSnapshot | None) -> None:
    after, _ = settle(view(node(R, **CRASHED), job={"head": said}))
    assert after.job.backoff.failures == 1


def test_a_final_manifest_that_is_told_of_after_the_crash_of_a_rank_is_read() -> None:
    said = replace(RELEASED, read_at_us=NOW + S, seen_at_us=NOW + 2 * S)
    gang = [node(R, rank=rank, **CRASHED) for rank in (0, 1)]
    after, _ = settle(view(*gang, job=GANG | {"head": said}), now=NOW + 20 * S)
    assert EffectKind.READ_HEAD in [n.call.effect for n in after.nodes]
    assert after.job.backoff.failures == 0


@pytest.mark.parametrize(
    ("mate", "reason"),
    [
        ({"gone_at_us": NOW}, LeaveReason.LOST),
        ({"state": G, "leave_reason": LeaveReason.LOST}, LeaveReason.LOST),
        ({"state": T, "leave_reason": LeaveReason.PREEMPTED}, LeaveReason.PREEMPTED),
        ({"notices": (notice(),)}, LeaveReason.PREEMPTED),
    ],
    ids=["gone-now", "gone", "leaving", "noticed"],
)
def test_a_rank_that_fails_when_another_is_taken_away_is_not_charged(
    mate: dict[str, Any], reason: LeaveReason
) -> None:
    other = node(mate.get("state", R), rank=1, **{k: v for k, v in mate.items() if k != "state"})
    crashed = node(R, **CRASHED)
    budget = {"spec": spec(num_nodes=2, max_restarts_on_errors=0)}
    after, plan = settle(view(crashed, other, job=budget))
    assert (after.job.backoff.failures, after.job.end.stop_text, after.job.outcome) == (0, "", None)
    assert "crashed" not in kinds(plan)
    left = by_id(after, crashed)
    assert (left.state, left.departure.leave_reason) == (T, reason)
    assert [n.generation for n in after.nodes][-2:] == [2, 2], "replaced at once"


@pytest.mark.parametrize(
    "sign", [{"link_down_at_us": NOW + S}, {"heard_at_us": NOW - S}], ids=["link-down", "silent"]
)
def test_a_rank_that_fails_before_another_is_found_silent_is_not_charged(
    sign: dict[str, Any],
) -> None:
    crashed, mate = node(R, **CRASHED), node(R, rank=1, heard_at_us=NOW)
    before, plan = settle(view(crashed, mate, job=GANG))
    assert before.nodes == (crashed, mate)
    assert plan.wake_at_us == NOW + 15 * S
    assert "other ranks" in plan.reason
    told = replace(before, nodes=(crashed, changed(mate, **sign)))
    after, _ = settle(told, now=NOW + 15 * S)
    assert after.job.backoff.failures == 0
    assert by_id(after, crashed).departure.leave_reason is LeaveReason.LOST
    assert [n.generation for n in after.nodes][-2:] == [2, 2]


def test_the_crash_of_a_gang_whose_machines_are_well_is_charged() -> None:
    crashed, mate = node(R, **CRASHED), node(R, rank=1, heard_at_us=NOW + 15 * S)
    before, _ = settle(view(crashed, mate, job=GANG))
    assert before.job.backoff.failures == 0
    after, plan = settle(before, now=NOW + 15 * S)
    assert after.job.backoff.failures == 1
    assert "crashed" in kinds(plan)
    free = GANG | {"spec": spec(num_nodes=2, recover_on_exit_codes=(1,))}
    after, _ = settle(view(crashed, mate, job=free))
    assert by_id(after, crashed).state is T, "what costs nothing need not be explained"


def test_a_crash_that_was_heard_of_late_waits_for_the_other_ranks_to_be_heard() -> None:
    late = {"exit_code": 1, "exited_at_us": NOW - 4000 * S}
    gang = [node(R, **late), node(R, rank=1, heard_at_us=NOW - 4000 * S)]
    back = market(listening_since_us=NOW)
    before, plan = settle(view(*gang, job=GANG), back)
    assert (before.job.backoff.failures, plan.wake_at_us) == (0, NOW + 15 * S)
    through = market(reached_since_us={"aws": NOW})  # their jump host responds again
    before, plan = settle(view(*gang, job=GANG), through)
    assert (before.job.backoff.failures, plan.wake_at_us) == (0, NOW + 15 * S)


def test_a_machine_that_trains_when_it_is_first_heard_is_chosen_and_running_at_once() -> None:
    """Of a database that was restored: it is on record as coming."""
    trains = hello(chosen=False, first_step_at_us=NOW - 600 * S, started_at_us=0, heard_at_us=NOW)
    draft = decide(view(trains), market(), NOW)
    fields = {k: v for c in draft.changes if isinstance(c, ChangeNode) for k, v in c.fields.items()}
    assert fields["chosen"] is True
    assert fields["state"] is R
    assert "training" in kinds(draft)


@pytest.mark.parametrize(
    ("tail", "said"),
    [
        ("", ""),
        ("one\ntwo\npip: no such package\n", " (pip: no such package)"),
        ("x" * 300, f" ({'x' * 200})"),
    ],
)
def test_a_job_whose_setup_fails_is_told_its_last_line(tail: str, said: str) -> None:
    failed = hello(chosen=True, started_at_us=NOW - S, setup_failed=True, exit_tail=tail)
    after, _ = settle(view(failed))
    assert after.job.end.stop_text == f"setup failed{said}; see `spotctl logs`"


def test_a_program_that_breaks_with_its_machine_is_not_charged() -> None:
    """Both are seen in one pass; what the cloud took is told first."""
    taken = node(
        R, exit_code=1, exited_at_us=NOW - S, gone_at_us=NOW, notices=(notice(),), launched_at_us=1
    )
    after, plan = settle(view(taken, job={"failures": 1}))
    assert (by_id(after, taken).state, by_id(after, taken).departure.leave_reason) == (
        G,
        LeaveReason.PREEMPTED,
    )
    assert after.job.backoff.failures == 1
    assert "crashed" not in kinds(plan)
