"""`spotd_hook.Run` in real programs: examples/loop and a small one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotd.wire import EXIT_FINISHED, EXIT_RELEASED
from tests.fixtures.waiting import LIMIT_S
from tests.trainer.hook.rig import Program
from tests.trainer.rig import AgentEnd
from trainer.hook.spotd_hook.run import Run
from trainer.hook.spotd_hook.session import Session, rank_state_of

STEPS = 120
EXAMPLE = "examples/loop/train.py"


@pytest.fixture
def agent() -> Iterator[AgentEnd]:
    with AgentEnd() as agent:
        yield agent


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Program, dict[int, float]]:
    program = Program(tmp_path_factory.mktemp("whole"), EXAMPLE, ("--steps", str(STEPS)))
    with AgentEnd() as agent:
        assert program.run(1, agent) == EXIT_FINISHED, program.output()
        assert agent.of("checkpoint")[-1]["final"]
        return program, agent.losses()


@pytest.mark.behaviour(
    "each step once and its loss reported once, with notice and without (`seed=`)",
    way="Run",
)
def test_a_run_that_was_interrupted_ends_in_the_same_bits(
    tmp_path: Path, agent: AgentEnd, reference: tuple[Program, dict[int, float]]
) -> None:
    # Far from done when we get to strike it, on a busy machine as well.
    program = Program(tmp_path, EXAMPLE, ("--steps", str(STEPS), "--step-time-ms", "50"))
    first = program.start(1, agent)
    agent.wait("progress", lambda data: data["to_step"] >= 30)
    agent.tell(save=1)
    agent.wait("checkpoint", lambda data: data["trigger"] == "asked")
    assert agent.of("checkpoint")[0]["trigger"] == "cadence"
    # Enough for a disk that all write to: with less, the newest that is durable is released.
    agent.tell(stop=True, reason="the machine goes", deadline_s=120.0)
    assert first.wait(LIMIT_S) == EXIT_RELEASED, program.output()
    released = agent.wait("released").data["step"]
    assert released >= 30, agent.of("plan")
    agent.tell(stop=False, deadline_s=None)
    second = program.start(2, agent)
    agent.wait("claimed", lambda data: data["step"] == released)
    agent.wait("progress", lambda data: data["to_step"] >= released + 30)
    os.kill(second.pid, signal.SIGKILL)
    second.wait(LIMIT_S)
    agent.wait_left()
    program.arguments = ("--steps", str(STEPS))
    assert program.run(3, agent) == EXIT_FINISHED, program.output()
    whole, losses = reference
    assert program.difference(whole) is None
    assert agent.losses() == losses
    assert sorted(losses) == list(range(1, STEPS + 1))


RANKED = "tests/trainer/hook/ranked.py"


@pytest.mark.behaviour("DDP on two ranks, each with its data and random numbers", way="Run")
@pytest.mark.soak
def test_ranks_stop_at_the_same_step_and_go_on_with_what_each_had_of_its_own(
    tmp_path: Path, agent: AgentEnd
) -> None:
    arguments = ("--steps", "60")
    whole = Program(tmp_path / "whole", RANKED, arguments, ranks=2)
    assert whole.run(1, agent) == EXIT_FINISHED, whole.output()
    losses = agent.losses()
    assert sorted(losses) == list(range(1, 61))
    program = Program(tmp_path / "parts", RANKED, arguments, ranks=2)
    with AgentEnd() as stopping:
        first = program.start(1, stopping)
        stopping.wait("progress", lambda data: data["to_step"] >= 5)
        stopping.tell(stop=True, reason="the machine goes", deadline_s=10.0)
        first.wait(LIMIT_S)
        codes = {data["rank"]: data["code"] for data in stopping.of("exit") if data["rank"] >= 0}
        assert codes == dict.fromkeys((0, 1), EXIT_RELEASED), program.output()
        assert 5 <= stopping.wait("released").data["step"] < 60
        stopping.tell(stop=False, deadline_s=None)
        assert program.run(2, stopping) == EXIT_FINISHED, program.output()
        assert program.difference(whole) is None
        assert stopping.losses() == losses


@pytest.mark.behaviour("a step that fails is not committed", way="Run")
def test_a_loop_that_fails_commits_nothing(tmp_path: Path, agent: AgentEnd) -> None:
    once = tmp_path / "the one before is committed"  # it would make way for a newer one
    failing = ("--steps", "50", "--fail-at", "45", "--save-at", "31", "--once", str(once))
    program = Program(tmp_path, RANKED, failing, env=alone(tmp_path))
    process = program.start(1, agent)
    agent.wait("checkpoint")
    once.touch()
    assert process.wait(LIMIT_S) == 1
    assert "the batch is bad" in program.output()
    agent.wait_left()
    saves = [(data["step"], data["trigger"]) for data in agent.of("checkpoint")]
    assert saves == [(20, "cadence"), (31, "program")]
    assert not any(data["final"] for data in agent.of("checkpoint"))


def alone(folder: Path) -> dict[str, str]:
    """The environment of a single rank."""
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    return {**rendezvous, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}


@pytest.mark.behaviour(
    "another number of ranks is refused, or accepted with `any_ranks`",
    way="Run",
)
def test_another_number_of_ranks_is_refused_unless_any_will_do() -> None:
    state = {"ranks": [{"at": 0}, {"at": 1}]}
    assert rank_state_of(state, 7, 1, 2, any_ranks=False) == {"at": 1}
    with pytest.raises(ValueError, match="saved by 2 ranks, but there are 1 here: start as many"):
        rank_state_of(state, 7, 0, 1, any_ranks=False)
    assert rank_state_of(state, 7, 2, 3, any_ranks=True) == {"at": 0}


@pytest.mark.parametrize("options", [{}, {"seed": 1, "data": object()}])
def test_ranks_that_have_something_of_their_own_stay_as_many(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="give seed=1, leave data out"):
        Run(any_ranks=True, model=object(), **options)


def test_a_job_whose_file_says_that_spotd_saves_nothing_is_told_at_once() -> None:
    with pytest.raises(RuntimeError, match=r"\{engine: spotd\}"):
        Session(dict, dict, env={"SPOTD_ENGINE": "none"})


def test_where_there_is_no_saver_it_trains_all_the_same_and_says_so(tmp_path: Path) -> None:
    program = Program(tmp_path, EXAMPLE, ("--steps", "5"))
    program.env = {"SPOTD_STORE_URL": "", "SAVERS_PYTHON": "/bin/false"}
    assert program.run() == EXIT_FINISHED, program.output()
    assert "spotd_hook: nothing is saved:" in program.output()
    assert "step 5/5" in program.output()
