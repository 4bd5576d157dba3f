"""The machines of several ranks end while no step does: the last whole step is saved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spotd.wire import EXIT_FINISHED, EXIT_RELEASED
from tests.fixtures.waiting import LIMIT_S, wait_until
from tests.trainer.hook.rig import Program
from tests.trainer.rig import AgentEnd

EVALUATING = "tests/trainer/hook/evaluating.py"
STEPS = 8
HELD_AT = 5
NOTICE_S = 8.0


@pytest.fixture
def agent() -> Iterator[AgentEnd]:
    with AgentEnd() as agent:
        yield agent


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Program, dict[int, float]]:
    """The same on machines that nothing happens to."""
    folder = tmp_path_factory.mktemp("whole")
    program = Program(folder, EVALUATING, ("--steps", str(STEPS)), ranks=2)
    with AgentEnd() as agent:
        assert program.run(1, agent) == EXIT_FINISHED, program.output()
        return program, agent.losses()


def leave(program: Program, agent: AgentEnd, held_by: tuple[int, ...]) -> int:
    """Give notice once the ranks are held; return the step that was released."""
    process = program.start(1, agent)
    for rank in held_by:
        wait_until(f"rank {rank} is held", (program.folder / f"held {rank}").exists)
    agent.tell(notice_s=NOTICE_S)
    process.wait(LIMIT_S)  # what holds them does not end
    codes = {data["rank"]: data["code"] for data in agent.of("exit") if data["rank"] >= 0}
    assert codes == dict.fromkeys((0, 1), EXIT_RELEASED), program.output()
    agent.tell(notice_s=None)
    agent.wait_left()
    return int(agent.wait("released").data["step"])


@pytest.mark.parametrize(
    ("form", "held_by", "step"),
    [
        ("both", (0, 1), HELD_AT),
        ("rank-0", (0,), HELD_AT),
        ("barrier", (0,), HELD_AT),
        ("rank-1", (1,), HELD_AT),
        ("data", (0,), HELD_AT),
        ("after", (0, 1), STEPS),
    ],
)
def test_the_last_whole_step_of_all_ranks_is_saved(
    tmp_path: Path,
    agent: AgentEnd,
    whole: tuple[Program, dict[int, float]],
    form: str,
    held_by: tuple[int, ...],
    step: int,
) -> None:
    """Whichever rank is held, and wherever the other waits for it."""
    go_on = tmp_path / "go on"
    held = ("--steps", str(STEPS), "--held", form, str(HELD_AT), str(go_on))
    program = Program(tmp_path / "parts", EVALUATING, held, ranks=2)
    program.env = {"SPOTD_EVERY_STEPS": "1000"}
    assert leave(program, agent, held_by) == step
    go_on.touch()
    assert program.run(2, agent) == EXIT_FINISHED, program.output()
    reference, losses = whole
    assert program.difference(reference) is None
    assert agent.losses() == losses


@pytest.mark.parametrize(("every", "held_at"), [("1000", 0), ("3", 6)])
def test_a_step_that_does_not_end_is_not_said_to_be_saved(
    tmp_path: Path, agent: AgentEnd, every: str, held_at: int
) -> None:
    """The last checkpoint is released in time, and nothing else is claimed."""
    held = ("--steps", str(STEPS), "--held", "compute", str(held_at), str(tmp_path / "never"))
    program = Program(tmp_path / "parts", EVALUATING, held, ranks=2)
    program.env = {"SPOTD_EVERY_STEPS": every}
    released = leave(program, agent, (0,))
    saved = [data["step"] for data in agent.of("checkpoint")]
    assert released == max(saved, default=0)
    assert bool(saved) == bool(held_at)
    assert "stopping after step" not in program.output()
