"""Lightning's Trainer, interrupted: what a run keeps equals what an uninterrupted one keeps.

The reference is always the trainer without spotd, with the same arguments.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from spotd.wire import EXIT_FINISHED, EXIT_RELEASED
from tests.fixtures.waiting import LIMIT_S, wait_until
from tests.trainer.hook.holding import let_go
from tests.trainer.hook.interrupted import to_another_machine
from tests.trainer.hook.rig import Program, kill_held, stop_held
from tests.trainer.hook.test_lightning import MODULES
from tests.trainer.rig import AgentEnd

pytestmark = pytest.mark.skipif(find_spec("lightning") is None, reason="pip install '.[examples]'")
FITTING = "tests/trainer/hook/fitting.py"


@pytest.fixture
def agent() -> Iterator[AgentEnd]:
    with AgentEnd() as agent:
        yield agent


def results(program: Program) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(program.folder.glob("result-*.json"))]


def reference(folder: Path, arguments: tuple[str, ...]) -> list[dict[str, Any]]:
    """What the trainer alone keeps of each training."""
    program = Program(folder, FITTING, (*arguments, "--plain"), modules=MODULES)
    assert program.run() == EXIT_FINISHED, program.output()
    return results(program)


EPOCHS = {"max_epochs": 3}
WITHIN = {"max_epochs": 3, "val_check_interval": 5}
CHECKED = {"max_epochs": 3, "num_sanity_val_steps": 2}
STEPS = {"max_steps": 24, "val_check_interval": 4, "check_val_every_n_epoch": None}


@pytest.mark.behaviour("the end of an epoch, and its validation", way="Lightning")
@pytest.mark.behaviour("the middle of an epoch, with a loader that keeps a state", way="Lightning")
@pytest.mark.behaviour("the order of the next epoch of a shuffled loader", way="Lightning")
@pytest.mark.behaviour(
    "a validation within an epoch, which sets the learning rate (ReduceLROnPlateau)",
    way="Lightning",
)
@pytest.mark.behaviour("max_steps, at and across the end of an epoch", way="Lightning")
@pytest.mark.behaviour("patience of EarlyStopping", way="Lightning")
@pytest.mark.parametrize("notice", [True, False])
@pytest.mark.parametrize(
    ("settings", "more", "left_at"),
    [
        pytest.param(EPOCHS, (), 10, id="the end of an epoch"),
        pytest.param(EPOCHS, (), 15, id="the middle of an epoch"),
        pytest.param(EPOCHS, ("--shuffle",), 19, id="the order of the next epoch"),
        pytest.param(WITHIN, (), 15, id="a validation within an epoch"),
        pytest.param(STEPS, (), 12, id="a number of steps, and a validation"),
        pytest.param(STEPS, (), 20, id="a number of steps, and the end of an epoch"),
        pytest.param({"max_epochs": 9}, ("--patience", "3"), 20, id="the patience of stopping"),
        pytest.param(CHECKED, (), 10, id="no sanity check at the end of an epoch"),
        pytest.param(EPOCHS, ("--ends",), 10, id="a loader that has no more batches"),
        pytest.param(EPOCHS, ("--ends",), 15, id="rows that are drawn"),
        pytest.param(EPOCHS, (), 25, id="the means of the last epoch"),
    ],
)
def test_a_run_that_was_interrupted_keeps_what_a_whole_one_keeps(
    tmp_path: Path,
    agent: AgentEnd,
    settings: dict[str, Any],
    more: tuple[str, ...],
    left_at: int,
    notice: bool,
) -> None:
    arguments = (json.dumps(settings), *more)
    whole = reference(tmp_path / "whole", arguments)
    hold = tmp_path / "go on"
    every = "10" if more == ("--shuffle",) else "5"
    env = {"HELD_IN": f"step {left_at}", "HELD_UNTIL": str(hold), "SPOTD_EVERY_STEPS": every}
    if notice:  # left before the next batch: it is not begun
        env["SPOTD_EVERY_STEPS"] = "100"
    program = Program(tmp_path / "parts", FITTING, arguments, env=env, modules=MODULES)
    process = program.start(1, agent)
    agent.wait("progress", lambda data: data["to_step"] >= left_at)
    if notice:
        assert stop_held(process, agent, hold) == EXIT_RELEASED, program.output()
    else:
        agent.wait("checkpoint", lambda data: data["step"] > left_at - int(every))
        kill_held(process, hold)
    agent.wait_left()
    to_another_machine(program)
    assert program.run(2, agent) == EXIT_FINISHED, program.output()
    assert results(program) == whole


@pytest.mark.behaviour(
    "a validation that was interrupted: done once, no step lost",
    way="Lightning",
)
@pytest.mark.parametrize("returns", [True, False])
@pytest.mark.parametrize(
    ("settings", "more", "step"),
    [
        pytest.param(WITHIN, (), 15, id="within an epoch"),
        pytest.param(EPOCHS, (), 20, id="of an epoch"),
        pytest.param(STEPS, (), 12, id="by steps"),
        pytest.param({"max_epochs": 9}, ("--patience", "3"), 20, id="with early stopping"),
    ],
)
def test_a_machine_that_ends_during_a_validation_loses_nothing(
    tmp_path: Path,
    agent: AgentEnd,
    settings: dict[str, Any],
    more: tuple[str, ...],
    step: int,
    returns: bool,
) -> None:
    """Whether the program comes to the next moment where it is asked, or never does."""
    arguments = (json.dumps(settings), *more)
    whole = reference(tmp_path / "whole", arguments)
    go_on = tmp_path / "go on"
    env = {"HELD_IN": f"evaluation {step}", "HELD_UNTIL": str(go_on), "SPOTD_EVERY_STEPS": "1000"}
    program = Program(tmp_path / "parts", FITTING, arguments, env=env, modules=MODULES)
    process = program.start(1, agent)
    wait_until("it is held", (program.folder / "held in evaluation").exists)
    if returns:
        agent.tell(stop=True, reason="the machine goes", deadline_s=120.0)
        let_go(go_on, stopped=1)
    else:
        agent.tell(notice_s=15.0)
    assert process.wait(LIMIT_S) == EXIT_RELEASED, program.output()
    assert agent.wait("released").data["step"] == step
    go_on.touch()
    agent.tell(stop=False, deadline_s=None, notice_s=None)
    agent.wait_left()
    to_another_machine(program)
    assert program.run(2, agent) == EXIT_FINISHED, program.output()
    assert results(program) == whole
    assert sorted(agent.losses()) == list(range(1, whole[0]["global_step"] + 1))


@pytest.mark.behaviour("several calls of fit()", way="Lightning")
def test_each_call_of_fit_is_a_training(tmp_path: Path, agent: AgentEnd) -> None:
    arguments = (json.dumps({"max_epochs": 1}), "--fits", "3")
    whole = reference(tmp_path / "whole", arguments)
    assert len(whole) == 3
    hold = tmp_path / "go on"
    program = Program(tmp_path / "parts", FITTING, arguments, modules=MODULES)
    program.env = {"HELD_IN": "step 7", "HELD_UNTIL": str(hold)}
    process = program.start(1, agent)
    agent.wait("progress", lambda data: data["to_step"] == 7)
    hold.touch()
    agent.wait("progress", lambda data: data["to_step"] >= 13)
    agent.tell(stop=True, reason="the machine goes", deadline_s=120.0)
    assert process.wait(LIMIT_S) == EXIT_RELEASED, program.output()
    assert 10 < agent.wait("released").data["step"] < 30
    agent.tell(stop=False, deadline_s=None)
    agent.wait_left()
    for path in program.folder.glob("result-*.json"):
        path.unlink()
    to_another_machine(program)
    assert program.run(2, agent) == EXIT_FINISHED, program.output()
    assert results(program) == whole
    assert agent.of("checkpoint")[-1]["final"]
