"""A loop with accelerate, interrupted: `tests/trainer/hook/accelerated.py`."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from spotd.wire import EXIT_FINISHED, EXIT_RELEASED
from tests.fixtures.forks import TORCH
from tests.trainer.hook.rig import Program

pytestmark = [
    pytest.mark.skipif(find_spec("accelerate") is None, reason="pip install '.[examples]'"),
    pytest.mark.xdist_group("accelerated"),  # one worker plays the undisturbed run for all
]
LOOP = "tests/trainer/hook/accelerated.py"
MODULES = (*TORCH, "accelerate")


def play(folder: Path, *more: str, leave_at: int = -1, forget: str = "") -> dict[str, Any]:
    program = Program(folder, LOOP, more, modules=MODULES)
    if leave_at >= 0:
        program.arguments = (*more, "--leave-at", str(leave_at))
        assert program.run(1) == EXIT_RELEASED, program.output()
    program.arguments = (*more, "--forget", forget) if forget else more
    assert program.run(2) == EXIT_FINISHED, program.output()
    left: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return left


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return play(tmp_path_factory.mktemp("whole"))


@pytest.mark.behaviour("a model and an optimizer that were prepared", way="accelerate")
@pytest.mark.behaviour("a scheduler that was prepared, which counts whole steps", way="accelerate")
@pytest.mark.behaviour("gradients accumulated with accumulate()", way="accelerate")
@pytest.mark.behaviour("objects that were registered for checkpointing", way="accelerate")
@pytest.mark.behaviour("place in a shuffled epoch (skip_first_batches)", way="accelerate")
@pytest.mark.parametrize("leave_at", [4, 7])
def test_it_ends_where_an_undisturbed_run_ends(
    tmp_path: Path, whole: dict[str, Any], leave_at: int
) -> None:
    """At the end of an epoch, and within one."""
    assert play(tmp_path, leave_at=leave_at) == whole


@pytest.mark.parametrize("name", ["optimizer", "scheduler", "seen", "data"])
def test_each_of_them_is_needed_for_it(tmp_path: Path, whole: dict[str, Any], name: str) -> None:
    assert play(tmp_path, leave_at=7, forget=name)[name] != whole[name]


@pytest.mark.behaviour(
    "random numbers after a loader without a generator began within a step",
    way="accelerate",
    holds=False,
    because="a loader that begins draws from the program's generator, and that of an interrupted "
    "epoch begins twice. Give it one of its own: `DataLoader(..., generator=torch.Generator())`",
)
def test_a_loader_that_begins_again_within_a_step_draws_once_more(tmp_path: Path) -> None:
    whole = play(tmp_path / "whole", "--shared")
    parts = play(tmp_path / "parts", "--shared", leave_at=7)
    assert parts["data"] == whole["data"]
    assert parts["model"] != whole["model"], "dropout is another"
