"""The wait for data is measured if the program declares its batches, and otherwise unknown."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from spotd.wire import EXIT_FINISHED
from tests.fixtures.forks import TORCH
from tests.trainer.hook import test_hf, test_lightning
from tests.trainer.hook.rig import Program
from tests.trainer.rig import AgentEnd

STARVED = "tests/trainer/hook/starved.py"
PAUSE_S = 0.1
Reports = list[dict[str, Any]]


def reports(folder: Path, kind: str, *arguments: str, modules: tuple[str, ...] = TORCH) -> Reports:
    """Return the progress reports of a complete run."""
    env = {"PAUSE_S": str(PAUSE_S), "HF_HUB_OFFLINE": "1"}
    program = Program(folder, STARVED, (kind, *arguments), env=env, modules=modules)
    with AgentEnd() as agent:
        assert program.run(1, agent) == EXIT_FINISHED, program.output()
        return agent.of("progress")


def judge(found: Reports, steps: int) -> None:
    """Check that there was a wait for each step's batch, within the time of the steps."""
    waited = sum(report["data_s"] for report in found)
    assert found[-1]["to_step"] == steps
    assert steps * PAUSE_S * 0.99 <= waited <= sum(report["busy_s"] for report in found)


@pytest.mark.req("HLT-12")
def test_of_a_loop_that_has_its_batches_from_run(tmp_path: Path) -> None:
    judge(reports(tmp_path, "loop", "6"), 6)


@pytest.mark.req("HLT-12")
def test_of_a_loop_that_does_not_say_nothing_is_known(tmp_path: Path) -> None:
    found = reports(tmp_path, "plain", "6")
    assert found[-1]["to_step"] == 6
    assert [report for report in found if "data_s" in report] == []
    assert all("save_s" in report for report in found)


@pytest.mark.req("HLT-12")
@pytest.mark.skipif(find_spec("transformers") is None, reason="pip install '.[examples]'")
def test_of_transformers_trainer(tmp_path: Path) -> None:
    found = reports(tmp_path, "transformers", "--steps", "6", modules=test_hf.MODULES)
    judge(found, 6)


@pytest.mark.soak
@pytest.mark.skipif(find_spec("lightning") is None, reason="pip install '.[examples]'")
def test_of_lightnings_trainer(tmp_path: Path) -> None:
    found = reports(tmp_path, "lightning", "--epochs", "1", modules=test_lightning.MODULES)
    judge(found, 20)
