"""One pass: stopped for good at any boundary, and run again, the world comes out the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spotd.model import Desired
from spotd.states import NodeState
from tests.spotd.stage import Stage

MakeStage = Callable[..., Stage]
L, B, R, D, T, G = NodeState


def first_launch(stage: Stage, job_id: str) -> None:
    """Placed, trained, finished, given back."""
    stage.goal = 60
    stage.submit(job_id)
    stage.run(lambda s: s.over(job_id))


def hand_over(stage: Stage, job_id: str) -> None:
    """A notice while it trains: the replacement takes over, and the old machine is given back."""
    stage.goal = None
    stage.submit(job_id)
    stage.run(lambda s: s.nodes(job_id, R))
    stage.warn(stage.nodes(job_id, R)[0])
    replaced(stage, job_id)


def cancelled_launch(stage: Stage, job_id: str) -> None:
    """Cancelled as soon as the intent to launch is on record."""
    stage.submit(job_id)
    stage.run(lambda s: s.nodes(job_id))
    stage.store.set_desired(job_id, Desired.CANCEL, "ada", stage.clock.now_us())
    stage.run(lambda s: s.over(job_id))


def sudden_death(stage: Stage, job_id: str) -> None:
    """The machine is gone without a word."""
    stage.goal = None
    stage.submit(job_id)
    stage.run(lambda s: s.nodes(job_id, R))
    lost = stage.nodes(job_id, R)[0]
    stage.clouds[lost.offer.provider].end(lost.instance_id)
    replaced(stage, job_id)


def replaced(stage: Stage, job_id: str) -> None:
    stage.run(lambda s: [n for n in s.nodes(job_id, R) if n.generation == 2])
    stage.goal = 0
    stage.run(lambda s: s.over(job_id))


def summary(stage: Stage, job_id: str) -> object:
    """How it ended, whatever happened on the way."""
    job, nodes = stage.job(job_id), stage.nodes(job_id)
    tokens = {node.token for node in nodes}
    creates = [c for cloud in stage.clouds.values() for t, c in cloud.creates.items() if t in tokens]
    return {
        "outcome": job.outcome,
        "nodes": [(n.generation, n.offer.key, n.leave_reason) for n in nodes],
        "creates": sorted(creates),
        "alive": stage.alive(),
        "segments": [row.state for row in stage.store.segments(job_id)],
    }


@pytest.mark.req("RPV-16")
@pytest.mark.parametrize("story", [first_launch, hand_over, cancelled_launch, sudden_death])
def test_a_daemon_that_dies_anywhere_ends_in_the_same_state(
    stage: Stage, story: Callable[[Stage, str], None]
) -> None:
    story(stage, "j0")
    expected = summary(stage, "j0")
    boundaries = [(b.when, b.what) for b in stage.boundaries]
    print(expected, len(boundaries))
    for number, boundary in enumerate(boundaries):
        stage.forget()
        stage.kill_at = number
        story(stage, f"j{number + 1}")
        found = summary(stage, f"j{number + 1}")
        assert found == expected, f"died {boundary}, number {number}:\n{stage.told()}"
