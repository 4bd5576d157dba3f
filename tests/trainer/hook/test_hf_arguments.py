"""Arguments of transformers: a run that was interrupted keeps what one without spotd keeps."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trainer.hook.argument_cases import TRANSFORMERS, Case, parameters
from tests.trainer.hook.interrupted import Interruption, assert_same, play, results
from tests.trainer.hook.rig import Program
from tests.trainer.hook.test_hf import MODULES, SHARDED, needs_accelerate
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


@pytest.mark.parametrize("case", parameters(TRANSFORMERS))
def test_what_a_run_keeps(tmp_path: Path, agent: AgentEnd, case: Case) -> None:
    from transformers import TrainingArguments

    if not case.settings.keys() <= {one.name for one in fields(TrainingArguments)}:
        pytest.skip("this version has no such argument")
    program = FINETUNE, (json.dumps(case.settings), *case.more), MODULES
    assert_same(
        tmp_path, agent, program, Interruption(case.left_at, case.notice, case.every), OFFLINE
    )


def plain(folder: Path, settings: dict[str, Any], *more: str) -> Program:
    """Run the trainer without spotd."""
    arguments = (json.dumps(settings), *more, "--plain")
    program = Program(folder, FINETUNE, arguments, 1, OFFLINE, MODULES)
    assert program.run() == 0, program.output()
    return program


SAVED = {"max_steps": 24, "save_strategy": "steps", "save_steps": 15, "learning_rate": 0.1}


@needs_accelerate
def test_a_checkpoint_that_the_program_begins_with(tmp_path: Path, agent: AgentEnd) -> None:
    """The mean loss is that of the steps of this job, and the best model may be an older one."""
    evaluated = {"eval_strategy": "steps", "eval_steps": 3, "load_best_model_at_end": True}
    settings = {**SAVED, **evaluated}
    before = plain(tmp_path / "before", settings)
    folder = str(before.folder / "out" / "checkpoint-15")
    program = FINETUNE, (json.dumps(settings), "--resume", folder), MODULES
    assert_same(tmp_path, agent, program, Interruption(20, every=2, before=15), OFFLINE)
    assert [data["step"] for data in agent.of("claimed")] == [0, 4], "steps of this job alone"


@needs_accelerate
def test_more_steps_than_before(tmp_path: Path, agent: AgentEnd) -> None:
    """As the trainer's own resume with other limits."""
    longer = {**SAVED, "max_steps": 30}
    whole = plain(tmp_path / "whole", SAVED)
    resumed = plain(
        tmp_path / "resumed", longer, "--resume", str(whole.folder / "out" / "checkpoint-15")
    )
    parts = Program(tmp_path / "parts", FINETUNE, (json.dumps(SAVED),), 1, OFFLINE, MODULES)
    play(parts, agent, Interruption(17, every=15), then=(json.dumps(longer),))
    [ours], [theirs] = results(parts.folder), results(resumed.folder)
    for name in ("weights", "global_step"):
        assert ours[name] == theirs[name]


def test_data_that_is_not_skipped(tmp_path: Path, agent: AgentEnd) -> None:
    """The epoch of the interruption begins anew, as the argument says."""
    settings = {**SAVED, "ignore_data_skip": True}
    whole = plain(tmp_path / "whole", settings)
    second_epoch = (whole.folder / "rows.txt").read_text().split()[40:80]
    parts = Program(tmp_path / "parts", FINETUNE, (json.dumps(settings),), 1, OFFLINE, MODULES)
    play(parts, agent, Interruption(17, every=15))
    assert (parts.folder / "rows.txt").read_text().split()[:36] == second_epoch[:36]
    assert results(parts.folder)[0]["global_step"] == 24


def test_each_save_is_pushed(tmp_path: Path, agent: AgentEnd) -> None:
    settings = {**SAVED, "save_steps": 6, "push_to_hub": True, "hub_strategy": "every_save"}
    whole = plain(tmp_path / "whole", settings)
    parts = Program(tmp_path / "parts", FINETUNE, (json.dumps(settings),), 1, OFFLINE, MODULES)
    play(parts, agent, Interruption(14, every=2))
    commits = (parts.folder / "commits.txt").read_text()
    assert commits == (whole.folder / "commits.txt").read_text()
    assert "Training in progress, step 12 model.safetensors\n" in commits
    assert not list((parts.folder / "out").glob("checkpoint-*"))


def test_what_has_no_effect_is_named_at_the_start(tmp_path: Path) -> None:
    settings = {"max_steps": 2, "save_total_limit": 2, "save_only_model": True}
    program = Program(tmp_path, FINETUNE, (json.dumps(settings),), 1, OFFLINE, MODULES)
    assert program.run() == 0, program.output()
    assert "spotd_hook: save_total_limit has no effect: no folders of" in program.output()
    assert "spotd_hook: save_only_model has no effect: no folders of" in program.output()


def test_a_longer_training_than_the_one_that_ended_is_refused(
    tmp_path: Path, agent: AgentEnd
) -> None:
    arguments = (json.dumps({"max_steps": 6}), "--trainings", "2")
    program = Program(tmp_path / "parts", FINETUNE, arguments, 1, OFFLINE, MODULES)
    longer = (json.dumps({"max_steps": 9}), "--trainings", "2")
    hold_in = Interruption(3, every=1, before=-6, held_in="training-1")
    play(program, agent, hold_in, then=longer, code=1)
    assert "max_steps was 6 when this training ended, and is 9 now" in program.output()


@pytest.mark.parametrize(
    ("given", "fsdp_version", "text"),
    [
        ({"push_to_hub": True, "hub_strategy": "checkpoint"}, 0, "hub_strategy='checkpoint' does"),
        ({"enable_jit_checkpoint": True}, 0, "enable_jit_checkpoint does not work with spotd_hook"),
        ({}, 1, 'fsdp_config={} does not work with spotd_hook: "fsdp_version" has to be 2'),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    given: dict[str, Any], fsdp_version: int, text: str
) -> None:
    from transformers import TrainingArguments

    from trainer.hook.spotd_hook.hf import check_arguments

    names = {one.name for one in fields(TrainingArguments)}
    if not given.keys() <= names:
        pytest.skip("this version has no such argument")
    args = TrainingArguments("out", use_cpu=True, report_to=[], **given)
    args.fsdp_config = {}
    trainer = SimpleNamespace(
        args=args,
        is_fsdp_enabled=bool(fsdp_version),
        accelerator=SimpleNamespace(
            state=SimpleNamespace(fsdp_plugin=SimpleNamespace(fsdp_version=fsdp_version))
        ),
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        check_arguments(trainer)


def test_a_search_is_refused_by_name(tmp_path: Path) -> None:
    arguments = (json.dumps({"max_steps": 2}), "--trial")
    program = Program(tmp_path, FINETUNE, arguments, 1, OFFLINE, MODULES)
    assert program.run() == 1
    assert (
        "trial does not work with spotd_hook: leave it out, and run a job for each"
        in program.output()
    )


@needs_accelerate
@pytest.mark.soak
def test_the_best_model_of_sharded_ranks(tmp_path: Path, agent: AgentEnd) -> None:
    """Rank 0 alone has the whole model of the best step."""
    evaluated = {
        "eval_strategy": "steps",
        "eval_steps": 3,
        "load_best_model_at_end": True,
        "greater_is_better": True,  # the loss: an early step
    }
    sharded = {"fsdp": "full_shard", "fsdp_config": {"version": 2}}
    settings = {**SAVED, "max_steps": 12, "save_steps": 3, "learning_rate": 0.3}
    arguments = ("finetune.py", json.dumps({**settings, **evaluated, **sharded}))
    whole = Program(tmp_path / "whole", SHARDED, arguments, 2, OFFLINE, MODULES)
    assert whole.run() == 0, whole.output()
    [kept] = results(whole.folder)
    assert kept["weights"] == kept["best_weights"]
    assert kept["best_step"] < 12
    parts = Program(tmp_path / "parts", SHARDED, arguments, 2, OFFLINE, MODULES)
    play(parts, agent, Interruption(8, notice=True, every=100))
    assert results(parts.folder) == [kept]
