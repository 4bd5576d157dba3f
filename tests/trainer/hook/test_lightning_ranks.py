"""Lightning's Trainer on two ranks: trainings in order, and machines that end in a validation.

The reference is always the trainer without spotd, with the same arguments and ranks.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from spotd.wire import EXIT_FINISHED, EXIT_RELEASED
from tests.fixtures.waiting import LIMIT_S, wait_until
from tests.trainer.hook.rig import Program, kill_held, stop_held
from tests.trainer.hook.test_lightning import MODULES
from tests.trainer.hook.test_lightning_whole_batch import FITTING, results
from tests.trainer.rig import AgentEnd

pytestmark = pytest.mark.skipif(find_spec("lightning") is None, reason="pip install '.[examples]'")
DDP = {"strategy": "ddp", "devices": 2}
EPOCHS = {**DDP, "max_epochs": 2}
WITHIN = {**DDP, "max_epochs": 2, "val_check_interval": 5}


@pytest.fixture
def agent() -> Iterator[AgentEnd]:
    with AgentEnd() as agent:
        yield agent


def reference(folder: Path, arguments: tuple[str, ...]) -> list[dict[str, Any]]:
    """What the trainer alone keeps of each training."""
    program = Program(folder, FITTING, (*arguments, "--plain"), 2, {}, MODULES)
    assert program.run() == EXIT_FINISHED, program.output()
    return results(program)


@pytest.mark.parametrize("rank", ["0", "1"])
@pytest.mark.parametrize(("settings", "step"), [(WITHIN, 5), (EPOCHS, 10), (EPOCHS, 20)])
def test_machines_that_end_during_a_validation_lose_nothing(
    tmp_path: Path, agent: AgentEnd, settings: dict[str, Any], step: int, rank: str
) -> None:
    arguments = (json.dumps(settings),)
    whole = reference(tmp_path / "whole", arguments)
    go_on = tmp_path / "go on"
    program = Program(tmp_path / "parts", FITTING, arguments, 2, {}, MODULES)
    program.env = {
        "HELD_IN": f"evaluation {step}",
        "HELD_RANK": rank,
        "HELD_UNTIL": str(go_on),
        "SPOTD_EVERY_STEPS": "1000",
    }
    process = program.start(1, agent)
    wait_until("it is held", (program.folder / "held in evaluation").exists)
    agent.tell(notice_s=12.0)
    process.wait(LIMIT_S)
    codes = {data["rank"]: data["code"] for data in agent.of("exit") if data["rank"] >= 0}
    assert codes == dict.fromkeys((0, 1), EXIT_RELEASED), program.output()
    assert agent.wait("released").data["step"] == step, "nothing is lost"
    go_on.touch()
    agent.tell(notice_s=None)
    agent.wait_left()
    assert program.run(2, agent) == EXIT_FINISHED, program.output()
    assert results(program) == whole
    assert sorted(agent.losses()) == list(range(1, whole[0]["global_step"] + 1))


@pytest.mark.parametrize(("stage", "notice"), [(0, True), (1, True), (1, False)])
def test_each_call_of_fit_is_a_training_on_all_ranks(
    tmp_path: Path, agent: AgentEnd, stage: int, notice: bool
) -> None:
    arguments = (json.dumps({**DDP, "max_epochs": 1}), "--fits", "2")
    whole = reference(tmp_path / "whole", arguments)
    assert len(whole) == 2
    hold = tmp_path / "go on"
    program = Program(tmp_path / "parts", FITTING, arguments, 2, {}, MODULES)
    program.env = {"HELD_IN": "step 5", "HELD_FIT": str(stage), "HELD_UNTIL": str(hold)}
    process = program.start(1, agent)
    wait_until("it is held", (program.folder / "held in step").exists)
    if notice:
        stop_held(process, agent, hold)
        released = agent.wait("released").data["step"]
        assert stage * 10 + 5 < released < stage * 10 + 10
    else:
        agent.wait("checkpoint", lambda data: data["step"] == 10)  # of the first fit
        kill_held(process, hold, pids=[data["pid"] for data in agent.of("hello")])
    agent.wait_left()
    for path in program.folder.glob("result-*.json"):  # on another machine
        path.unlink()
    for folder in program.folder.glob("root-*"):
        shutil.rmtree(folder)
    assert program.run(2, agent) == EXIT_FINISHED, program.output()
    assert results(program) == whole
    assert agent.of("checkpoint")[-1]["step"] == 20
