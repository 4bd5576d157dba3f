"""transformers' Trainer on data without an order of its own: after an interruption, it has the
batches that it would have had, also beyond its first pass; or it says that it has not.

The reference is always the trainer without spotd, with the same arguments.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spotd.wire import EXIT_FINISHED, EXIT_RELEASED
from tests.trainer.hook.rig import Program, kill_held, stop_held
from tests.trainer.hook.test_hf import MODULES
from tests.trainer.hook.test_hf_whole_step import FINETUNE, OFFLINE, reference, results
from tests.trainer.rig import AgentEnd

pytestmark = pytest.mark.skipif(
    find_spec("transformers") is None, reason="pip install '.[examples]'"
)
STEPS = {"max_steps": 28, "learning_rate": 0.01}  # a pass has 11 steps
WORKERS = {"dataloader_num_workers": 2}


@pytest.fixture
def agent() -> Iterator[AgentEnd]:
    with AgentEnd() as agent:
        yield agent


def interrupted(
    folder: Path, agent: AgentEnd, arguments: tuple[str, ...], left_at: int, *, notice: bool
) -> Program:
    """Run the program on two machines; the first one ends at a step."""
    hold = folder / "go on"
    held = {"HELD_IN": f"step {left_at}", "HELD_UNTIL": str(hold), "SPOTD_EVERY_STEPS": "3"}
    program = Program(folder / "parts", FINETUNE, arguments, 1, {**OFFLINE, **held}, MODULES)
    process = program.start(1, agent)
    agent.wait("progress", lambda data: data["to_step"] >= left_at)
    agent.wait("checkpoint", lambda data: data["step"] >= left_at - 3)
    if notice:
        assert stop_held(process, agent, hold) == EXIT_RELEASED, program.output()
    else:
        kill_held(process, hold)
    agent.wait_left()
    assert program.run(2, agent) == EXIT_FINISHED, program.output()
    return program


def alerts(agent: AgentEnd) -> list[str]:
    return [entry["text"] for entry in agent.of("warning") if entry.get("alert")]


@pytest.mark.parametrize(
    "left_at",
    [
        pytest.param(7, id="mid 1", marks=pytest.mark.soak),
        pytest.param(11, id="end 1"),
        pytest.param(16, id="mid 2"),
        pytest.param(22, id="end 2", marks=pytest.mark.soak),
    ],
)
@pytest.mark.parametrize(
    ("data", "settings", "loader"),
    [
        ("rows", {}, ""),
        ("plain", {}, ""),
        ("same", {"gradient_accumulation_steps": 2, "max_steps": 24}, ""),
        ("sized", {}, ""),
        ("stream", {}, ""),
        ("stateful", {}, ""),
        ("plain", WORKERS, ""),
        ("random", WORKERS, ""),
        ("stream", {}, "counting"),
        ("plain", {}, "torchdata"),
        ("stateful", {}, "torchdata"),
        ("plain", WORKERS, "torchdata"),
    ],
)
def test_the_batches_are_those_of_a_run_without_interruption(
    tmp_path: Path,
    agent: AgentEnd,
    data: str,
    settings: dict[str, Any],
    loader: str,
    left_at: int,
) -> None:
    arguments = (json.dumps({**STEPS, **settings}), "--data", data, "--loader", loader)
    whole = reference(tmp_path / "whole", arguments)
    program = interrupted(tmp_path, agent, arguments, left_at, notice=left_at % 2 == 1)
    assert results(program) == whole
    assert alerts(agent) == []


def test_data_that_draws_random_numbers_of_the_program_is_named_at_the_start(
    tmp_path: Path, agent: AgentEnd
) -> None:
    arguments = (json.dumps(STEPS), "--data", "random")
    program = Program(tmp_path, FINETUNE, arguments, 1, OFFLINE, MODULES)
    assert program.run(1, agent) == EXIT_FINISHED, program.output()
    (text,) = alerts(agent)
    assert "(Random) draws from the program's random generators" in text
    assert "StatefulDataLoader" in text
    assert text in program.output()


def test_data_that_is_not_the_same_again_is_said(tmp_path: Path, agent: AgentEnd) -> None:
    arguments = (json.dumps(STEPS), "--data", "changing")
    program = interrupted(tmp_path, agent, arguments, 16, notice=True)
    (text,) = alerts(agent)
    assert "(Changing) is not the same when it is read again" in text
    assert text in program.output()


def test_who_wants_no_data_skipped_gets_none_skipped(tmp_path: Path, agent: AgentEnd) -> None:
    settings = {**STEPS, "ignore_data_skip": True}
    arguments = (json.dumps(settings), "--data", "changing")
    interrupted(tmp_path, agent, arguments, 16, notice=True)
    assert alerts(agent) == []


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("loop", "where training stands in Stream is not saved"),
        ("saved", ""),
        ("lightning", "Lightning begins to read Stream anew after a resume"),
    ],
)
def test_a_position_that_is_not_saved_is_named_at_the_start(
    tmp_path: Path, agent: AgentEnd, way: str, words: str
) -> None:
    program = Program(tmp_path, "tests/trainer/hook/starved_stream.py", (way,), 1, OFFLINE, MODULES)
    assert program.run(1, agent) == EXIT_FINISHED, program.output()
    assert len(alerts(agent)) == (1 if words else 0)
    assert all(text.startswith(words) for text in alerts(agent))
    assert words in program.output()


def test_a_loader_whose_first_batches_are_skipped_stays_in_its_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """accelerate before 1.15 makes a new loader for that, which begins with the first epoch."""
    import transformers.trainer

    from trainer.hook.spotd_hook.hf_data import TrainingData

    class Loader:
        iteration = 0

    def skip(dataloader: Loader, num_batches: int = 0) -> Loader:
        return Loader()

    monkeypatch.setattr(transformers.trainer, "skip_first_batches", skip)
    data = TrainingData(SimpleNamespace(get_train_dataloader=None, get_batch_samples=None), print)
    loader = Loader()
    loader.iteration = 3
    with data.skipping():
        assert transformers.trainer.skip_first_batches(loader, 5).iteration == 3
    assert transformers.trainer.skip_first_batches is skip


def test_a_training_that_resumes_after_its_last_epoch_keeps_the_order_of_that_epoch() -> None:
    """It begins no epoch, and its last checkpoint equals that of an undisturbed run."""
    from trainer.hook.spotd_hook.hf_data import TrainingData

    saved = {"order": {"chance": {"python": 1}, "generator": 2, "now": 3}, "position": None}
    data = TrainingData(SimpleNamespace(get_train_dataloader=None, get_batch_samples=None), print)
    data.start(saved)
    assert data.state() == saved
    data.start(None)
    assert data.state() == {"order": {}, "position": None}
