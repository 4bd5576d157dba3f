"""One word for what a job is doing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from providers.base import CapacityType, Offer, OfferRequest
from spotd.domain.fast_replace import changed
from spotd.domain.job import CheckpointSpec, Desired, Job, JobProgram, JobResources, JobSpec
from spotd.domain.node import Node
from spotd.domain.phase import PHASES, phase
from spotd.domain.states import NodeState, Outcome

SPEC = JobSpec("j", JobProgram("run"), JobResources((OfferRequest(),)), CheckpointSpec("file:///x"))
JOB = Job("j1", "j", SPEC, Desired.RUN, 1, 1)
OFFER = Offer("aws", "r", "z", "t", CapacityType.SPOT, 1, 2)


def node(state: NodeState, rank: int = 0, **fields: Any) -> Node:
    base = Node(f"n{rank}", "j1", 1, rank, 0, f"t{rank}", OFFER, state, 1, chosen=True)
    return changed(base, **fields)


S = NodeState


@pytest.mark.parametrize(
    ("job", "nodes", "expected"),
    [
        ({}, [], "waiting"),
        ({}, [node(S.LAUNCHING)], "launching"),
        ({}, [node(S.LAUNCHING), node(S.BOOTING, 1)], "booting"),
        ({}, [node(S.RUNNING)], "running"),
        ({"first_step_at_us": 1}, [node(S.RUNNING)], "running"),
        ({"first_step_at_us": 1}, [node(S.DRAINING), node(S.BOOTING)], "draining"),
        (
            {"first_step_at_us": 1},
            [node(S.DRAINING, released_at_us=5), node(S.BOOTING)],
            "recovering",
        ),
        ({"first_step_at_us": 1}, [node(S.DRAINING, exit_code=75), node(S.BOOTING)], "recovering"),
        ({"first_step_at_us": 1}, [node(S.LAUNCHING)], "recovering"),
        ({"first_step_at_us": 1}, [node(S.TERMINATING)], "waiting"),
        ({"first_step_at_us": 1}, [node(S.GONE)], "waiting"),
        ({"desired": Desired.PAUSE}, [node(S.RUNNING)], "draining"),
        ({"desired": Desired.PAUSE}, [node(S.TERMINATING)], "paused"),
        ({"desired": Desired.CANCEL}, [node(S.RUNNING)], "cancelling"),
        ({"desired": Desired.CANCEL, "outcome": Outcome.CANCELLED}, [], "cancelled"),
        ({"outcome": Outcome.SUCCEEDED}, [node(S.RUNNING)], "succeeded"),
        ({"outcome": Outcome.FAILED}, [], "failed"),
    ],
)
def test_table(job: dict[str, Any], nodes: list[Node], expected: str) -> None:
    found = phase(changed(JOB, **job), nodes)
    assert found == expected
    assert found in PHASES


def test_a_gang_runs_when_every_rank_does() -> None:
    gang = replace(JOB, spec=changed(SPEC, num_nodes=2))
    assert phase(gang, [node(S.RUNNING), node(S.BOOTING, 1)]) == "booting"
    assert phase(gang, [node(S.RUNNING), node(S.RUNNING, 1)]) == "running"
    # Two machines of one rank, during a hand-over, are not two ranks.
    assert phase(gang, [node(S.RUNNING), node(S.RUNNING), node(S.BOOTING, 1)]) == "booting"
