"""transformers' Trainer on two ranks: trainings in order, and machines that end while no step does.

The reference is always the trainer without spotd, with the same arguments and ranks.
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
from tests.trainer.hook.rig import Program, kill_held, stop_held
from tests.trainer.hook.test_hf import MODULES
from tests.trainer.hook.test_hf_whole_step import BEST, FINETUNE, OFFLINE, PLATEAU, results
from tests.trainer.rig import AgentEnd

pytestmark = pytest.mark.skipif(
    find_spec("transformers") is None, reason="pip install '.[examples]'"
)
EPOCHS = {  # 5 steps of two ranks are an epoch
    "num_train_epochs": 3,
    "eval_strategy": "epoch",
    "logging_strategy": "epoch",
    "save_strategy": "epoch",
    "learning_rate": 0.01,
}
SHORT_PLATEAU = {**PLATEAU, "max_steps": 12}


@pytest.fixture
def agent() -> Iterator[AgentEnd]:
    with AgentEnd() as agent:
        yield agent


def reference(folder: Path, arguments: tuple[str, ...], ranks: int) -> list[dict[str, Any]]:
    """What the trainer alone keeps of each training."""
    program = Program(folder, FINETUNE, (*arguments, "--plain"), ranks, OFFLINE, MODULES)
    assert program.run() == EXIT_FINISHED, program.output()
    return results(program)


@pytest.mark.parametrize(
    ("settings", "more", "held", "rank", "ranks"),
    [
        pytest.param(SHORT_PLATEAU, (), "evaluation 6", "0", 2, id="an evaluation of rank 0"),
        pytest.param(SHORT_PLATEAU, (), "evaluation 6", "1", 2, id="an evaluation of rank 1"),
        pytest.param(SHORT_PLATEAU, (), "log 9", "0", 2, id="a tracker that does not answer"),
        pytest.param(SHORT_PLATEAU, (), "log 6", "0", 2, id="a log, and then an evaluation"),
        pytest.param(BEST, ("--patience", "3"), "report 12", "0", 2, id="after an evaluation"),
        pytest.param(EPOCHS, (), "epoch 10", "0", 2, id="samples at the end of an epoch"),
        pytest.param(SHORT_PLATEAU, (), "data 7", "0", 2, id="a wait for data"),
        pytest.param(SHORT_PLATEAU, (), "log 6", "0", 1, id="a log of one rank"),
        pytest.param(BEST, ("--patience", "3"), "report 12", "0", 1, id="a report of one rank"),
        pytest.param(EPOCHS, (), "epoch 20", "0", 1, id="the end of an epoch of one rank"),
    ],
)
def test_machines_that_end_while_no_step_does_lose_nothing(
    tmp_path: Path,
    agent: AgentEnd,
    settings: dict[str, Any],
    more: tuple[str, ...],
    held: str,
    rank: str,
    ranks: int,
) -> None:
    """Only one rank is held, and the other waits for it somewhere."""
    arguments = (json.dumps(settings), *more)
    whole = reference(tmp_path / "whole", arguments, ranks)
    where, step = held.split()
    go_on = tmp_path / "go on"
    env = {"HELD_IN": held, "HELD_RANK": rank, "HELD_UNTIL": str(go_on)}
    program = Program(tmp_path / "parts", FINETUNE, arguments, ranks, {}, MODULES)
    program.env = {**OFFLINE, **env, "SPOTD_EVERY_STEPS": "1000"}
    process = program.start(1, agent)
    wait_until("it is held", (program.folder / f"held in {where}").exists)
    agent.tell(notice_s=12.0)
    process.wait(LIMIT_S)
    codes = {data["rank"]: data["code"] for data in agent.of("exit") if data["rank"] >= 0}
    assert codes == dict.fromkeys(range(ranks), EXIT_RELEASED), program.output()
    assert agent.wait("released").data["step"] == int(step), "nothing is lost"
    go_on.touch()
    agent.tell(notice_s=None)
    agent.wait_left()
    assert program.run(2, agent) == EXIT_FINISHED, program.output()
    assert results(program) == whole
    assert sorted(agent.losses()) == list(range(1, whole[0]["global_step"] + 1))


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("notice", [True, False])
def test_each_call_of_train_is_a_training_on_all_ranks(
    tmp_path: Path, agent: AgentEnd, stage: int, notice: bool
) -> None:
    steps = 8
    settings = {**BEST, "max_steps": steps, "eval_steps": 2, "save_steps": 2}
    arguments = (json.dumps(settings), "--trainings", "2")
    whole = reference(tmp_path / "whole", arguments, 2)
    assert len(whole) == 2
    program = Program(tmp_path / "parts", FINETUNE, arguments, 2, OFFLINE, MODULES)
    hold = tmp_path / "go on"
    at = stage * steps + 5
    program.env = {**OFFLINE, "HELD_IN": "step 5", "HELD_UNTIL": str(hold)}
    program.env["HELD_TRAINING"] = str(stage)
    process = program.start(1, agent)
    wait_until("it is held", (program.folder / "held in step").exists)
    if notice:
        stop_held(process, agent, hold)
        released = agent.wait("released").data["step"]
        assert released in (at + 1, at + 2), "ranks agree one step later"
    else:
        agent.wait("checkpoint", lambda data: data["step"] == at - 1)
        kill_held(process, hold, pids=[data["pid"] for data in agent.of("hello")])
    agent.wait_left()
    for path in program.folder.glob("result-*.json"):  # on another machine
        path.unlink()
    assert program.run(2, agent) == EXIT_FINISHED, program.output()
    assert results(program) == whole
    assert agent.of("checkpoint")[-1]["step"] == 2 * steps
