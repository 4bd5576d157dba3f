"""transformers' Trainer, interrupted: what a run keeps equals what an uninterrupted one keeps.

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
from tests.trainer.hook.rig import Program, kill_held, stop_held
from tests.trainer.hook.test_hf import MODULES
from tests.trainer.rig import AgentEnd

pytestmark = pytest.mark.skipif(
    find_spec("transformers") is None, reason="pip install '.[examples]'"
)
FINETUNE = "tests/trainer/hook/finetune.py"
OFFLINE = {"HF_HUB_OFFLINE": "1"}


@pytest.fixture
def agent() -> Iterator[AgentEnd]:
    with AgentEnd() as agent:
        yield agent


def reference(folder: Path, arguments: tuple[str, ...]) -> list[dict[str, Any]]:
    """What the trainer alone keeps of each training."""
    program = Program(folder, FINETUNE, (*arguments, "--plain"), 1, OFFLINE, MODULES)
    assert program.run() == EXIT_FINISHED, program.output()
    return results(program)


def results(program: Program) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(program.folder.glob("result-*.json"))]


PLATEAU = {
    "max_steps": 30,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "lr_scheduler_type": "reduce_lr_on_plateau",
    "lr_scheduler_kwargs": {"patience": 0},
    "learning_rate": 0.5,
}
EPOCHS = {  # 10 steps are an epoch
    "num_train_epochs": 3,
    "eval_strategy": "epoch",
    "save_strategy": "epoch",
    "learning_rate": 0.01,
}
BEST = {
    "max_steps": 24,
    "eval_strategy": "steps",
    "eval_steps": 3,
    "save_strategy": "steps",
    "save_steps": 3,
    "load_best_model_at_end": True,
    "learning_rate": 0.3,
}
LENGTHS = {"max_steps": 20, "train_sampling_strategy": "group_by_length"}
AT_START = {"max_steps": 12, "eval_strategy": "steps", "eval_steps": 4, "eval_on_start": True}
SUMS = {"max_steps": 12, "gradient_accumulation_steps": 3, "logging_steps": 12}


@pytest.mark.behaviour(
    "an evaluation that sets the learning rate (reduce_lr_on_plateau)",
    way="transformers",
)
@pytest.mark.behaviour(
    "losses that are summed and not logged yet, and the log history",
    way="transformers",
)
@pytest.mark.behaviour("the evaluation and the save at the end of an epoch", way="transformers")
@pytest.mark.behaviour("the order of data in the middle of an epoch", way="transformers")
@pytest.mark.behaviour("the best model and its metric (load_best_model_at_end)", way="transformers")
@pytest.mark.behaviour("patience of early stopping", way="transformers")
@pytest.mark.behaviour("a save for each best model (save_strategy=best)", way="transformers")
@pytest.mark.parametrize("notice", [True, False])
@pytest.mark.parametrize(
    ("settings", "more", "left_at"),
    [
        pytest.param(LENGTHS, (), 15, id="an order that is drawn from the program's generators"),
        pytest.param(AT_START, (), 6, id="the evaluation before the first step"),
        pytest.param(SUMS, (), 7, id="the sum of the losses of several batches a step"),
        pytest.param(PLATEAU, (), 12, id="an evaluation that sets the learning rate"),
        pytest.param(PLATEAU, (), 13, id="in the middle of what is logged"),
        pytest.param(EPOCHS, (), 10, id="the evaluation at the end of an epoch"),
        pytest.param(EPOCHS, (), 15, id="the middle of an epoch"),
        pytest.param(BEST, (), 15, id="the best model of before"),
        pytest.param(BEST, ("--patience", "3"), 12, id="the patience of early stopping"),
        pytest.param(
            {**BEST, "save_strategy": "best", "metric_for_best_model": "loss"},
            (),
            14,
            id="a save for each best model",
        ),
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
    held = {"HELD_IN": f"step {left_at}", "HELD_UNTIL": str(hold), "SPOTD_EVERY_STEPS": "4"}
    program = Program(tmp_path / "parts", FINETUNE, arguments, 1, {**OFFLINE, **held}, MODULES)
    process = program.start(1, agent)
    agent.wait("progress", lambda data: data["to_step"] >= left_at)
    agent.wait("checkpoint", lambda data: data["step"] >= left_at - 4)
    if notice:
        assert stop_held(process, agent, hold) == EXIT_RELEASED, program.output()
    else:
        kill_held(process, hold)
    agent.wait_left()
    assert program.run(2, agent) == EXIT_FINISHED, program.output()
    assert results(program) == whole


@pytest.mark.behaviour(
    "an evaluation that was interrupted: done once, no step lost",
    way="transformers",
)
@pytest.mark.behaviour("a step before a long wait for data is not lost", way="transformers")
@pytest.mark.parametrize("returns", [True, False])
@pytest.mark.parametrize(
    ("settings", "more", "held"),
    [
        pytest.param(PLATEAU, (), "evaluation 12", id="an evaluation"),
        pytest.param(EPOCHS, (), "evaluation 10", id="an epoch's evaluation"),
        pytest.param(BEST, ("--patience", "3"), "evaluation 12", id="with early stopping"),
        pytest.param({**BEST, "max_steps": 13}, (), "evaluation 13", id="that of the last step"),
        pytest.param(PLATEAU, (), "data 13", id="a wait for data"),
    ],
)
def test_a_machine_that_ends_while_no_step_does_loses_nothing(
    tmp_path: Path,
    agent: AgentEnd,
    settings: dict[str, Any],
    more: tuple[str, ...],
    held: str,
    returns: bool,
) -> None:
    """Whether the program comes to the next moment where it is asked, or never does."""
    arguments = (json.dumps(settings), *more)
    whole = reference(tmp_path / "whole", arguments)
    step, go_on = int(held.split()[1]), tmp_path / "go on"
    env = {**OFFLINE, "HELD_IN": held, "HELD_UNTIL": str(go_on), "SPOTD_EVERY_STEPS": "1000"}
    program = Program(tmp_path / "parts", FINETUNE, arguments, 1, env, MODULES)
    process = program.start(1, agent)
    wait_until("it is held", (program.folder / f"held in {held.split(maxsplit=1)[0]}").exists)
    if returns:
        agent.tell(stop=True, reason="the machine goes", deadline_s=120.0)
        let_go(go_on, stopped=1)
    else:
        agent.tell(notice_s=15.0)
    assert process.wait(LIMIT_S) == EXIT_RELEASED, program.output()
    released = agent.wait("released").data["step"]
    may_be = (step, step + 1) if returns and held.startswith("data") else (step,)
    assert released in may_be
    go_on.touch()
    agent.tell(stop=False, deadline_s=None, notice_s=None)
    agent.wait_left()
    assert program.run(2, agent) == EXIT_FINISHED, program.output()
    assert results(program) == whole
    assert sorted(agent.losses()) == list(range(1, whole[0]["global_step"] + 1))


@pytest.mark.behaviour("several trainers one after the other, as for folds", way="transformers")
def test_each_call_of_train_is_a_training(tmp_path: Path, agent: AgentEnd) -> None:
    """Three trainers one after the other, as for the folds of a cross-validation."""
    settings = {**BEST, "max_steps": 9}
    arguments = (json.dumps(settings), "--trainings", "3")
    whole = reference(tmp_path / "whole", arguments)
    assert len(whole) == 3
    hold = tmp_path / "go on"
    program = Program(tmp_path / "parts", FINETUNE, arguments, 1, OFFLINE, MODULES)
    program.env = {**OFFLINE, "HELD_IN": "step 7", "HELD_UNTIL": str(hold)}
    process = program.start(1, agent)
    agent.wait("progress", lambda data: data["to_step"] == 7)
    hold.touch()
    agent.wait("progress", lambda data: data["to_step"] == 9 + 4)
    agent.tell(stop=True, reason="the machine goes", deadline_s=120.0)
    assert process.wait(LIMIT_S) == EXIT_RELEASED, program.output()
    released = agent.wait("released").data["step"]
    assert 9 < released < 27, agent.of("released")
    agent.tell(stop=False, deadline_s=None)
    agent.wait_left()
    for path in program.folder.glob("result-*.json"):
        path.unlink()
    assert program.run(2, agent) == EXIT_FINISHED, program.output()
    assert results(program) == whole
    assert agent.of("checkpoint")[-1]["final"]


def test_an_argument_that_cannot_be_honoured_is_refused_by_name(tmp_path: Path) -> None:
    settings = json.dumps({"auto_find_batch_size": True})
    program = Program(tmp_path, FINETUNE, (settings,), 1, OFFLINE, MODULES)
    assert program.run() == 1
    assert "ValueError: auto_find_batch_size does not work with spotd_hook" in program.output()
    assert "leave it out, and give the per_device_train_batch_size that fits" in program.output()
    assert not results(program)


def test_what_trl_collects_for_its_next_log_is_restored() -> None:
    from collections import defaultdict
    from types import SimpleNamespace

    from trainer.hook.spotd_hook import hf

    def trl_trainer() -> Any:
        lists = {mode: defaultdict[str, list[float]](list) for mode in ("train", "eval")}
        return SimpleNamespace(_metrics=lists, _total_train_tokens=0)

    left, resumed = trl_trainer(), trl_trainer()
    left._metrics["train"]["entropy"] += [0.5, 0.25]
    left._total_train_tokens = 120
    saved, after_log = hf._means_of(left), hf._means_of(left, logged=True)
    left._metrics["train"]["entropy"].append(9.0)  # after the save
    hf._restore_means(resumed, saved)
    resumed._metrics["train"]["entropy"].append(0.75)
    assert resumed._metrics["train"] == {"entropy": [0.5, 0.25, 0.75]}
    assert resumed._total_train_tokens == 120
    resumed = trl_trainer()
    hf._restore_means(resumed, after_log)
    assert (resumed._metrics["train"], resumed._total_train_tokens) == ({}, 120)
    assert hf._means_of(SimpleNamespace()) is None  # of transformers itself
