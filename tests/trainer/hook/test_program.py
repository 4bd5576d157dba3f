"""Programs that train several times, one after the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from providers.stores import open_store
from spotd.wire import EXIT_FINISHED, EXIT_RELEASED, parse_pin, pin_folder
from tests.fixtures.waiting import LIMIT_S
from tests.trainer.hook.rig import Program, kill_held, stop_held
from tests.trainer.rig import ROOT, AgentEnd
from trainer.fence import read_head

STAGES = "tests/trainer/hook/stages.py"
STEPS = 12


@pytest.fixture
def agent() -> Iterator[AgentEnd]:
    with AgentEnd() as agent:
        yield agent


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Both stages on one machine that nothing happens to."""
    program = undisturbed(tmp_path_factory.mktemp("whole"), ranks=1)
    with AgentEnd() as agent:
        program.folder /= "again"
        assert program.run(1, agent) == EXIT_FINISHED, program.output()
        finals = [data["step"] for data in agent.of("checkpoint") if data["final"]]
        assert finals == [2 * STEPS]
    return program


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """The same on two ranks."""
    return undisturbed(tmp_path_factory.mktemp("two"), ranks=2)


def undisturbed(folder: Path, *, ranks: int) -> Program:
    program = Program(folder, STAGES, ranks=ranks)
    with AgentEnd() as agent:
        assert program.run(1, agent) == EXIT_FINISHED, program.output()
        assert sorted(agent.losses()) == list(range(1, 2 * STEPS + 1))
        assert agent.of("checkpoint")[-1]["step"] == 2 * STEPS
        totals = {(data["total_steps"], data.get("at_least")) for data in agent.of("progress")}
        assert totals == {(STEPS, None), (2 * STEPS, True)}, "no third one is ruled out"
    return program


def weights(program: Program, stage: str) -> dict[str, torch.Tensor]:
    loaded: dict[str, torch.Tensor] = torch.load(program.folder / f"{stage}.pt")
    return loaded


def assert_equal(program: Program, reference: Program) -> None:
    for stage in ("one", "two"):
        ours, theirs = weights(program, stage), weights(reference, stage)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours), stage
    assert drawn(program) == drawn(reference), "the same random numbers afterwards"


def drawn(program: Program) -> str:
    """Return the last line about random numbers."""
    lines = program.output().splitlines()
    return [line for line in lines if line.startswith("drawn at the end")][-1]


@pytest.mark.behaviour("several trainings in one program (stages, folds)", way="Run")
@pytest.mark.parametrize("stage", ["one", "two"])
@pytest.mark.parametrize("notice", [True, False])
def test_each_training_ends_as_on_a_machine_that_nothing_happens_to(
    tmp_path: Path, agent: AgentEnd, reference: Program, stage: str, notice: bool
) -> None:
    hold = tmp_path / "go on"
    program = Program(tmp_path / "parts", STAGES, ("--hold", stage, "7", str(hold)))
    program.env = {"SPOTD_EVERY_STEPS": "5"}
    at = 7 if stage == "one" else STEPS + 7
    process = program.start(1, agent)
    agent.wait("progress", lambda data: data["to_step"] == at)
    agent.wait("checkpoint", lambda data: data["step"] == at - 2)
    if notice:
        assert stop_held(process, agent, hold) == EXIT_RELEASED, program.output()
        assert agent.wait("released").data["step"] == at + 1
    else:
        kill_held(process, hold)
    agent.wait_left()
    for file in program.folder.glob("*.pt"):  # on another machine
        file.unlink()
    assert program.run(2, agent) == EXIT_FINISHED, program.output()
    assert_equal(program, reference)
    assert agent.of("checkpoint")[-1]["final"]
    claimed = [data["step"] for data in agent.of("claimed")]
    assert claimed == [0, at + 1 if notice else at - 2]


@pytest.mark.behaviour(
    "results of trainings that have ended, however few checkpoints are kept",
    way="Run",
)
def test_results_of_ended_trainings_are_kept_however_few_checkpoints_are(
    tmp_path: Path, agent: AgentEnd, reference: Program
) -> None:
    hold = tmp_path / "never"
    program = Program(tmp_path / "parts", STAGES, ("--hold", "two", "11", str(hold)))
    program.env = {"SPOTD_EVERY_STEPS": "1", "SPOTD_KEEP": "1"}
    process = program.start(1, agent)
    agent.wait("checkpoint", lambda data: data["step"] == STEPS + 11)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(LIMIT_S)
    agent.wait_left()
    store = open_store((program.folder / "store").as_uri())
    pins = [parse_pin(store.get(info.key)[0]) for info in store.list(pin_folder("job"))]
    assert [(pin.name, pin.ref.step) for pin in pins] == [("results-1", STEPS)]
    program.arguments = ()
    assert program.run(2, agent) == EXIT_FINISHED, program.output()
    assert "training 1 ended at step 12; its results are restored" in program.output()
    assert_equal(program, reference)


@pytest.mark.behaviour(
    "no step of a training that had ended is repeated; the code after it is",
    way="Run",
)
def test_what_follows_the_last_training_runs_again_on_another_machine(
    tmp_path: Path, agent: AgentEnd, reference: Program
) -> None:
    wait = tmp_path / "go on"
    program = Program(tmp_path / "parts", STAGES, ("--hold-after", str(wait)))
    process = program.start(1, agent)
    agent.wait("idle")
    agent.wait("checkpoint", lambda data: data["step"] == 2 * STEPS)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(LIMIT_S)
    agent.wait_left()
    store = open_store((program.folder / "store").as_uri())
    entry = read_head(store, "job")
    assert entry is not None
    assert not entry[0].final, "its program has not ended"
    wait.touch()
    before = len(agent.losses())
    assert program.run(2, agent) == EXIT_FINISHED, program.output()
    assert len(agent.losses()) == before
    assert_equal(program, reference)
    assert agent.of("checkpoint")[-1]["final"]


def test_trainings_that_cannot_be_told_apart_fail_and_name_the_second(
    tmp_path: Path, agent: AgentEnd
) -> None:
    program = Program(tmp_path / "same", STAGES, ("--names", "a,a"))
    assert program.run(1, agent) == 1
    assert "two trainings of this program are called 'a'" in program.output()


@pytest.mark.behaviour("a program that begins with another training is refused", way="Run")
def test_a_program_that_begins_with_another_training_fails(tmp_path: Path, agent: AgentEnd) -> None:
    hold = tmp_path / "never"
    names = ("--names", "pre,fine")
    program = Program(tmp_path / "parts", STAGES, (*names, "--hold", "two", "7", str(hold)))
    program.env = {"SPOTD_EVERY_STEPS": "5"}
    process = program.start(1, agent)
    agent.wait("checkpoint", lambda data: data["step"] == STEPS + 5)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(LIMIT_S)
    agent.wait_left()
    assert all(data["at_least"] for data in agent.of("progress")), "it names its trainings"
    program.arguments = ("--order", "two", "--names", "other")
    assert program.run(2, agent) == 1
    text = "newest checkpoint is of training 'fine', which has not ended, and this program begins"
    assert text in program.output()
    assert "'other'" in program.output()


def test_a_machine_that_ends_after_the_last_training_is_left_at_the_last_moment(
    tmp_path: Path, agent: AgentEnd, reference: Program
) -> None:
    wait = tmp_path / "go on"
    program = Program(tmp_path / "parts", STAGES, ("--hold-after", str(wait)))
    process = program.start(1, agent)
    agent.wait("idle")
    agent.wait("checkpoint", lambda data: data["step"] == 2 * STEPS)
    agent.tell(notice_s=6.0)
    assert process.wait(LIMIT_S) == EXIT_RELEASED, program.output()
    assert agent.wait("released").data["step"] == 2 * STEPS
    assert not any(data["final"] for data in agent.of("checkpoint"))
    agent.tell(notice_s=None)
    agent.wait_left()
    wait.touch()
    assert program.run(2, agent) == EXIT_FINISHED, program.output()
    assert_equal(program, reference)
    assert agent.of("checkpoint")[-1]["final"]


@pytest.mark.parametrize("stage", ["one", "two"])
@pytest.mark.parametrize("notice", [True, False])
def test_all_ranks_go_on_in_the_training_that_was_interrupted(
    tmp_path: Path, agent: AgentEnd, of_two: Program, stage: str, notice: bool
) -> None:
    hold = tmp_path / "go on"
    held = ("--hold", stage, "7", str(hold))
    program = Program(tmp_path / "parts", STAGES, held, ranks=2)
    program.env = {"SPOTD_EVERY_STEPS": "5"}
    first = 0 if stage == "one" else STEPS
    process = program.start(1, agent)
    agent.wait("checkpoint", lambda data: first + 5 <= data["step"] <= first + 7)
    if notice:
        stop_held(process, agent, hold)
        left_at = agent.wait("released").data["step"]
    else:
        left_at = agent.of("checkpoint")[-1]["step"]
        kill_held(process, hold, pids=[data["pid"] for data in agent.of("hello")])
    assert first < left_at < first + STEPS
    agent.wait_left()
    for file in program.folder.glob("*.pt"):  # on other machines
        file.unlink()
    assert program.run(2, agent) == EXIT_FINISHED, program.output()
    assert_equal(program, of_two)
    assert [data["step"] for data in agent.of("claimed")] == [0, left_at]
    assert agent.of("checkpoint")[-1]["step"] == 2 * STEPS


def test_ranks_with_trainings_in_another_order_fail_and_name_them(
    tmp_path: Path, agent: AgentEnd
) -> None:
    others = ("--names", "a,b", "--names-of-rank-1", "b,a")
    program = Program(tmp_path / "parts", STAGES, others, ranks=2)
    assert program.run(1, agent) == 1
    assert "training 'a' begins on rank 0, and training 'b' on rank 1" in program.output()
    assert "create the same trainings in the same order" in program.output()
    assert not agent.of("checkpoint")


@pytest.mark.parametrize(("names", "names_of_rank_1", "rank"), [("a,b", "a", 0), ("a", "a,b", 1)])
def test_a_training_that_another_rank_does_not_have_fails_and_is_named(
    tmp_path: Path, agent: AgentEnd, names: str, names_of_rank_1: str, rank: int
) -> None:
    """Under torchrun itself, whose processes end with their programs."""
    program = Program(tmp_path, STAGES)
    others = ["--names", names, "--names-of-rank-1", names_of_rank_1, "--plain-models"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m"]
    ended = subprocess.run(
        [*torchrun, "tests.trainer.hook.program", str(ROOT / STAGES), *others],
        env=program.environment(1, agent),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    said = f"training 'b' begins on rank {rank}, and another rank has ended without it"
    assert said in ended.stderr
    assert "create the same trainings in the same order" in ended.stderr
