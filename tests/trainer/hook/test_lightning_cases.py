"""Trainings with Lightning that a resume could spoil: `tests/trainer/hook/lightning_cases.py`.

Each is compared, bit for bit, with Lightning's Trainer alone: weights, optimizers, each batch with
its epoch, number and step, what the logger was given, and what the case is about. The machine gives
notice within a batch, so batches and lines of the log of both machines are those of the undisturbed
run, each once.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from spotd.wire import EXIT_FINISHED, EXIT_RELEASED
from tests.trainer.hook.rig import Program
from tests.trainer.hook.test_lightning import MODULES

pytestmark = pytest.mark.skipif(find_spec("lightning") is None, reason="pip install '.[examples]'")
CASES = "tests/trainer/hook/lightning_cases.py"


def left_by(run: Program) -> dict[str, Any]:
    """What Lightning left at the end, and the batches and lines of the log on all machines."""
    left: dict[str, Any] = json.loads((run.folder / "result.json").read_text())
    for file in ("seen", "logged"):
        left[file] = (run.folder / f"{file}.txt").read_text().splitlines()
    return left


def play(folder: Path, case: str, leave_at: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what is left without spotd, and after an interruption in that batch."""
    whole = Program(folder / "whole", CASES, (case, "--plain"), modules=MODULES)
    assert whole.run() == EXIT_FINISHED, whole.output()
    parts = Program(folder / "parts", CASES, (case, "--leave-at", str(leave_at)), modules=MODULES)
    assert parts.run(1) == EXIT_RELEASED, parts.output()
    parts.arguments = (case,)
    assert parts.run(2) == EXIT_FINISHED, parts.output()
    return left_by(whole), left_by(parts)


def row(case: str, leave_at: int, *behaviours: str, **more: Any) -> Any:
    marks = [pytest.mark.behaviour(text, way="Lightning", **more) for text in behaviours]
    return pytest.param(case, leave_at, marks=marks, id=f"{case}-{leave_at}")


@pytest.mark.parametrize(
    ("case", "leave_at"),
    [
        row(
            "progress",
            11,
            "progress: epoch, batch_idx and global_step of each batch, none twice",
            "what the LightningModule saves itself (on_save_checkpoint, on_load_checkpoint)",
            "hyperparameters are those of the program",
            "a logger gets each step once",
            "random numbers after the training",
        ),
        row("progress", 7, "progress at the end of an epoch"),
        row("steps_of_several", 7, "accumulate_grad_batches, the shorter last one included"),
        row("accumulation_by_epoch", 10, "GradientAccumulationScheduler"),
        row("scheduled", 11, "schedulers of steps, with a frequency, and of epochs"),
        row("in_turn", 11, "manual optimization with several optimizers, one every other batch"),
        row(
            "callback",
            11,
            "state_dict of callbacks",
            "on_save_checkpoint and on_load_checkpoint of callbacks",
        ),
        row("data_module", 11, "state_dict of the LightningDataModule"),
        row("loaders", 11, "several loaders at once (CombinedLoader), each with its state"),
        row("norm", 11, "running statistics and the extra state of modules"),
        row("average", 11, "moving average of the weights (EMAWeightAveraging)"),
        row("stochastic", 5, "StochasticWeightAveraging, before it begins"),
        row("stochastic", 13, "StochasticWeightAveraging, while it averages"),
        row("checkpoints", 11, "state of the default ModelCheckpoint"),
        row("validated", 12, "callback_metrics of the last validation"),
        row("clipped", 7, "limit_train_batches and gradient clipping"),
        row("mean_of_epoch", 11, "the mean of an epoch, logged with on_epoch=True"),
        row("half", 11, "float32 and int8 optimizer state of bfloat16 weights (bf16-true)"),
    ],
)
def test_it_ends_where_an_undisturbed_run_ends(tmp_path: Path, case: str, leave_at: int) -> None:
    whole, parts = play(tmp_path, case, leave_at)
    assert parts == whole


@pytest.mark.behaviour(
    "a loader that keeps no state, within an epoch",
    way="Lightning",
    holds=False,
    because="Lightning begins it again at its first batch, whatever made the checkpoint. Use a "
    "loader with a state, such as torchdata's StatefulDataLoader, or end epochs more often",
)
def test_a_loader_without_a_state_begins_again_within_an_epoch(tmp_path: Path) -> None:
    whole, parts = play(tmp_path, "without_a_state", 11)
    rows = [[line.split()[-1] for line in one["seen"]] for one in (whole, parts)]
    assert rows[1][:12] == rows[0][:12]
    assert rows[1][12:16] == rows[0][8:12], "the first batches of the epoch, again"
    assert parts["weights"] != whole["weights"]
