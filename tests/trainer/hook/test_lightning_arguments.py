"""Arguments of Lightning: a run that was interrupted keeps what one without spotd keeps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trainer.hook.argument_cases import LIGHTNING, Case, parameters
from tests.trainer.hook.interrupted import Interruption, assert_same, play, results
from tests.trainer.hook.rig import Program
from tests.trainer.hook.test_lightning import MODULES
from tests.trainer.rig import AgentEnd

pytestmark = pytest.mark.skipif(find_spec("lightning") is None, reason="pip install '.[examples]'")
FITTING = "tests/trainer/hook/fitting.py"


@pytest.fixture
def agent() -> Iterator[AgentEnd]:
    with AgentEnd() as agent:
        yield agent


@pytest.mark.parametrize("case", parameters(LIGHTNING))
def test_what_a_run_keeps(tmp_path: Path, agent: AgentEnd, case: Case) -> None:
    from lightning.pytorch import callbacks

    named = json.loads(case.more[1]) if case.more else []
    if not all(hasattr(callbacks, name) for name, _ in named):
        pytest.skip("this version has no such callback")
    arguments = (json.dumps(case.settings), *case.more)
    interruption = Interruption(case.left_at, case.notice, case.every)
    assert_same(tmp_path, agent, (FITTING, arguments, MODULES), interruption)
    if "max_time" in case.settings:
        assert float((tmp_path / "parts" / "seconds-before").read_text()) > 0


def test_another_folder_of_the_logger(tmp_path: Path, agent: AgentEnd) -> None:
    """On a disk with the files of the first run, a logger takes the folder of another version."""
    arguments = ('{"max_epochs": 4, "logger": true}', *LIGHTNING[0].more)
    interruption = Interruption(35, same_disk=True)
    _, parts = assert_same(tmp_path, agent, (FITTING, arguments, MODULES), interruption)
    logs = parts.folder / "root-0" / "lightning_logs"
    assert sorted(path.name for path in logs.iterdir()) == ["version_0", "version_1"]


def test_the_file_that_the_program_begins_with(tmp_path: Path, agent: AgentEnd) -> None:
    """With ckpt_path the trainer's steps do not begin with 0."""
    before = Program(tmp_path / "before", FITTING, ('{"max_steps": 8}', "--plain"), modules=MODULES)
    assert before.run() == 0, before.output()
    [path] = (before.folder / "root-0").rglob("*.ckpt")
    more = ("--ckpt-path", str(path))
    arguments = ('{"max_epochs": 4, "accumulate_grad_batches": 2}', *more)
    _, parts = assert_same(
        tmp_path, agent, (FITTING, arguments, MODULES), Interruption(14, before=8)
    )
    assert [data["step"] for data in agent.of("claimed")] == [0, 4], "steps of this job alone"
    assert results(parts.folder)[0]["global_step"] > 14


@pytest.mark.parametrize(
    ("settings", "callbacks", "text"),
    [
        ({}, [["ModelCheckpoint", {"save_top_k": -1}]], "save_top_k=-1 does not work with"),
        ({}, [["LearningRateFinder", {}]], "LearningRateFinder does not work with spotd_hook"),
        ({"plugins": "AsyncCheckpointIO"}, [], "plugins does not work with spotd_hook: leave it"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    tmp_path: Path, settings: dict[str, str], callbacks: list[Any], text: str
) -> None:
    arguments = (json.dumps({"max_steps": 2, **settings}), "--callbacks", json.dumps(callbacks))
    program = Program(tmp_path, FITTING, arguments, modules=MODULES)
    assert program.run() == 1
    assert text in program.output()


def test_what_has_no_effect_is_named_at_the_start(tmp_path: Path) -> None:
    callbacks = [["OnExceptionCheckpoint", {"dirpath": "root-exception"}]]
    arguments = ('{"max_steps": 2}', "--callbacks", json.dumps(callbacks))
    program = Program(tmp_path, FITTING, arguments, modules=MODULES)
    assert program.run() == 0, program.output()
    assert "dirpath of OnExceptionCheckpoint has no effect: the file is on" in program.output()


def test_a_strategy_for_sharded_models_is_refused_by_name() -> None:
    from lightning.pytorch.strategies import FSDPStrategy

    from trainer.hook.spotd_hook.lightning import check_arguments

    trainer = SimpleNamespace(strategy=FSDPStrategy.__new__(FSDPStrategy))
    with pytest.raises(ValueError, match=r"strategy does not work .* such as ddp, or let Lightni"):
        check_arguments(trainer, ranks=1)


@pytest.mark.soak
def test_two_ranks_that_torchrun_started(tmp_path: Path, agent: AgentEnd) -> None:
    settings = {"max_epochs": 3, "strategy": "ddp", "devices": 2, "use_distributed_sampler": False}
    arguments = (json.dumps(settings), *LIGHTNING[0].more)
    env = {"HELD_RANK": "0"}
    whole = Program(tmp_path / "whole", FITTING, (*arguments, "--plain"), 2, {}, MODULES)
    assert whole.run() == 0, whole.output()
    parts = Program(tmp_path / "parts", FITTING, arguments, 2, env, MODULES)
    play(parts, agent, Interruption(15, notice=True, every=100))
    assert results(parts.folder) == results(whole.folder)


def test_processes_that_lightning_starts_are_refused() -> None:
    """The ranks have to be known before the trainer is made."""
    from lightning.fabric.plugins import TorchCheckpointIO

    from trainer.hook.spotd_hook.lightning import check_arguments

    strategy = SimpleNamespace(checkpoint_io=TorchCheckpointIO())
    trainer = SimpleNamespace(
        strategy=strategy, checkpoint_callbacks=[], callbacks=[], world_size=2
    )
    with pytest.raises(ValueError, match=r"devices and num_nodes make 2 .* with torchrun"):
        check_arguments(trainer, ranks=1)
