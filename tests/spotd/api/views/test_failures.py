"""The first line of `spotctl why` for each state of a job, and the one view of failures."""

from __future__ import annotations

from typing import Any

import pytest

from spotd.api.views.failures import headline, job_failure
from spotd.domain.job import Attempt, Desired, HeadSnapshot, Job
from spotd.domain.node import EffectKind, Node
from spotd.domain.states import LeaveReason, NodeState, Outcome
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.planner.planner import decide
from spotd.wire import EXIT_FINISHED, EXIT_HUNG, EXIT_RELEASED, EXIT_UNFIT
from tests.spotd.planner.build import NOW, OFFERS, hello, job, market, node, notice, spec

TRACE = "Traceback (most recent call last):\n  File 'a'\nValueError: bad batch\n"
EXIT: dict[str, Any] = {"exit_code": 1, "exited_at_us": NOW - 5 * S, "exit_tail": TRACE}
RAN: dict[str, Any] = {"generation": 1, "first_step_at_us": NOW - 60 * S}
GONE, LEFT = NodeState.GONE, NOW - 4 * S
CRASHED = node(GONE, **EXIT, leave_reason=LeaveReason.FAILED, left_at_us=LEFT, chosen=True)
CAUSE = "the program exited with code 1: ValueError: bad batch"


def left(reason: LeaveReason, text: str, **fields: Any) -> Node:
    return node(GONE, leave_reason=reason, leave_text=text, left_at_us=LEFT, **fields)


FAILED: dict[str, Any] = {**RAN, "outcome": Outcome.FAILED}
# name: (job, the nodes that it has or had, the first line)
STATES: dict[str, tuple[Job, list[Node], str]] = {
    "new": (job(), [], "requesting aws/aws-1/aws-1a"),
    "launching": (job(generation=1), [node()], "waiting for a machine to come up"),
    "launching, and the call fails": (
        job(generation=1),
        [
            node(
                effect=EffectKind.LAUNCH,
                effect_failures=3,
                effect_error="AuthError: no such key",
                effect_failed_at_us=NOW - S,
            )
        ],
        "launch fails (3 times in a row): AuthError: no such key; waiting for a machine to come up",
    ),
    "training": (job(**RAN), [node(NodeState.RUNNING)], "training on node g1 in aws/aws-1a"),
    "getting ready": (
        job(generation=1),
        [hello(chosen=True, started_at_us=NOW)],
        "node g1 in aws/aws-1a is getting ready",
    ),
    "crashed, in its pause": (
        job(**RAN, failures=1, place_after_us=NOW + 20 * S),
        [CRASHED],
        f"{CAUSE}; trying again in 20 s after the failure",
    ),
    "crashed, and the next one comes": (
        job(**{**RAN, "generation": 2}, failures=1),
        [CRASHED, node(generation=2)],
        f"{CAUSE}; waiting for a machine to come up",
    ),
    "crashed, and it trains again": (
        job(**{**RAN, "generation": 2}, failures=1),
        [CRASHED, node(NodeState.RUNNING, generation=2, first_step_at_us=NOW)],
        "training on node g2 in aws/aws-1a",
    ),
    "crashed, and not yet decided upon": (
        job(
            **RAN,
            head=HeadSnapshot(
                1, 5, "m", released=False, final=False, seen_at_us=NOW, read_at_us=NOW
            ),
        ),
        [node(NodeState.RUNNING, **EXIT)],
        f"{CAUSE}; trying again in 5 s after the failure",
    ),
    "crashed for the last time": (
        job(**FAILED, outcome_text="the program exited with code 1; no restart is left"),
        [CRASHED],
        "the program exited with code 1; no restart is left: ValueError: bad batch",
    ),
    "killed, with nothing recognised": (
        job(**RAN, failures=1, place_after_us=NOW + 20 * S),
        [node(GONE, **(EXIT | {"exit_tail": "epoch 3\n", "exit_code": 7}), left_at_us=LEFT)],
        'the program exited with code 7; last line: "epoch 3"; trying again',
    ),
    "killed by the kernel": (
        job(**RAN, failures=1, place_after_us=NOW + 20 * S),
        [node(GONE, **(EXIT | {"exit_tail": "epoch 3\n", "exit_code": 137}), left_at_us=LEFT)],
        "the program exited with code 137 (SIGKILL: killed, as the kernel does when memory runs",
    ),
    "hung": (
        job(**RAN, failures=1, place_after_us=NOW + 20 * S),
        [
            node(
                GONE,
                exit_code=EXIT_HUNG,
                exit_cause="no step for 900 s",
                exited_at_us=LEFT,
            )
        ],
        "the program hung, and was ended: no step for 900 s; trying again",
    ),
    "the store cannot be used": (
        job(**RAN, failures=1, place_after_us=NOW + 20 * S),
        [node(GONE, **EXIT | {"failed_part": "store", "exit_cause": "403 AccessDenied"})],
        "the checkpoint store could not be used: 403 AccessDenied; trying again",
    ),
    "the agent cannot run it": (
        job(**RAN, failures=1, place_after_us=NOW + 20 * S),
        [node(GONE, **EXIT | {"failed_part": "agent", "exit_cause": "bash cannot be started"})],
        "the agent could not run the program: bash cannot be started; trying again",
    ),
    "the machine is unfit": (
        job(generation=2),
        [
            node(GONE, exit_code=EXIT_UNFIT, exit_cause="no GPU", exited_at_us=LEFT),
            node(generation=2),
        ],
        "the machine is not fit to train on: no GPU; waiting for a machine",
    ),
    "setup failed": (
        job(generation=1, outcome=Outcome.FAILED, outcome_text="setup failed (E: no libfo); see"),
        [node(GONE, setup_failed=True, exit_tail="E: no libfo\n", left_at_us=LEFT)],
        "setup failed (E: no libfo); see",
    ),
    "no image": (
        job(generation=1),
        [
            hello(
                chosen=True,
                started_at_us=NOW - S,
                setup_failed=True,
                failed_part="image",
                exit_tail="image x does not exist",
                exit_cause="image x does not exist",
            )
        ],
        "the container could not be started (image x does not exist); see `spotctl logs`",
    ),
    "not up in time": (
        job(generation=2),
        [
            left(LeaveReason.BOOT_TIMEOUT, "not up within 900 s", effect_error="SSH refuses us"),
            node(generation=2),
        ],
        "the machine did not get ready: SSH refuses us; waiting for a machine to come up",
    ),
    "lost": (
        job(**{**RAN, "generation": 2}),
        [left(LeaveReason.LOST, "silent for too long"), node(generation=2)],
        "the machine was lost: silent for too long; waiting for a machine to come up",
    ),
    "refused by the cloud": (
        job(generation=1),
        [
            left(
                LeaveReason.CAPACITY,
                "no room",
                instance_id="",
                launch_error="InsufficientInstanceCapacity",
            )
        ],
        "the cloud refused a machine: InsufficientInstanceCapacity; requesting",
    ),
    "preempted": (
        job(**{**RAN, "generation": 2}),
        [left(LeaveReason.PREEMPTED, "notice", exit_code=EXIT_RELEASED), node(generation=2)],
        "waiting for a machine to come up",
    ),
    "a notice": (
        job(**RAN),
        [node(NodeState.RUNNING, notices=(notice(),))],
        "node g1 in aws/aws-1a is being preempted, 120 s left",
    ),
    "it exited 0, and HEAD is not read": (
        job(**RAN),
        [node(NodeState.RUNNING, exit_code=EXIT_FINISHED, exited_at_us=NOW - S)],
        "node g1 in aws/aws-1a exited 0; waiting for its last checkpoint to be read",
    ),
    "paused": (job(**RAN, desired=Desired.PAUSE), [], "paused"),
    "cancelled": (
        job(**RAN, desired=Desired.CANCEL, outcome=Outcome.CANCELLED, outcome_text="cancelled"),
        [CRASHED],
        "cancelled",
    ),
    "a limit": (
        job(**FAILED, outcome_text="max_cost_usd of 5.00 reached"),
        [left(LeaveReason.CANCELLED, "max_cost_usd", exit_code=EXIT_RELEASED)],
        "max_cost_usd of 5.00 reached",
    ),
    "succeeded after a crash": (
        job(**RAN, outcome=Outcome.SUCCEEDED, outcome_text="finished at step 9"),
        [CRASHED],
        "finished at step 9",
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_the_first_line_of_why_is_true(name: str) -> None:
    state, nodes, line = STATES[name]
    alive = [one for one in nodes if one.state is not GONE]
    attempts = tuple(
        Attempt(state.id, number, NOW - 60 * S, "first")
        for number in range(1, state.generation + 1)
    )
    plan = decide(View(state, attempts, tuple(alive), loaded_at_us=NOW), market(OFFERS), NOW)
    told = headline(state, nodes, plan.reason)
    assert told.startswith(line), told
    ended = {one.id for one in nodes if one.training.exit_code is not None}
    if ended and "training on" in " ".join(plan.reasons):
        assert len(nodes) > len(ended), "nothing trains where the program has ended"


def test_of_a_gang_the_rank_that_failed_first_is_the_cause() -> None:
    late = node(GONE, **EXIT | {"exited_at_us": NOW, "exit_tail": "NCCL error"}, rank=0)
    first = node(GONE, **EXIT, rank=1)
    failure = job_failure(job(**RAN, spec=spec(num_nodes=2)), [late, first])
    assert failure is not None
    assert (failure["rank"], failure["cause"]) == (1, "ValueError: bad batch")
    assert failure["lines"] == TRACE.splitlines()
    assert failure["over"] is False


def test_a_job_that_never_failed_has_none() -> None:
    assert job_failure(job(), [node(NodeState.RUNNING)]) is None
