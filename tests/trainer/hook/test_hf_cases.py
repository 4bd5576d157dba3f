"""Trainings with transformers' Trainer that a resume could spoil: `tests/trainer/hook/hf_cases.py`.

Each is compared, bit for bit, with the trainer alone: weights, log history, rows seen, and what the
case is about. The machine gives notice within a step, so the rows of both machines are those of the
undisturbed run, each once.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from spotd.wire import EXIT_FINISHED, EXIT_RELEASED
from tests.trainer.hook.rig import Program
from tests.trainer.hook.test_hf import MODULES

pytestmark = pytest.mark.skipif(
    find_spec("transformers") is None, reason="pip install '.[examples]'"
)
CASES = "tests/trainer/hook/hf_cases.py"
OFFLINE = {"HF_HUB_OFFLINE": "1"}


def program(folder: Path, *arguments: str) -> Program:
    return Program(folder, CASES, arguments, 1, OFFLINE, MODULES)


def left_by(run: Program) -> dict[str, Any]:
    """What the trainer left at the end, and the rows of each batch on all machines."""
    left: dict[str, Any] = json.loads((run.folder / "result.json").read_text())
    seen = run.folder / "seen.txt"
    return {**left, "seen": seen.read_text().splitlines() if seen.exists() else []}


def play(folder: Path, case: str, leave_at: int, *more: str) -> tuple[dict[str, Any], ...]:
    """Return what is left without spotd, and after an interruption in the step after `leave_at`."""
    whole = program(folder / "whole", case, "--plain", *more)
    assert whole.run() == EXIT_FINISHED, whole.output()
    parts = program(folder / "parts", case, "--leave-at", str(leave_at))
    assert parts.run(1) == EXIT_RELEASED, parts.output()
    parts.arguments = (case, *more)
    assert parts.run(2) == EXIT_FINISHED, parts.output()
    return left_by(whole), left_by(parts)


def row(case: str, leave_at: int, *behaviours: str, **more: Any) -> Any:
    marks = [pytest.mark.behaviour(text, way="transformers", **more) for text in behaviours]
    return pytest.param(case, leave_at, marks=marks, id=f"{case}-{leave_at}")


@pytest.mark.parametrize(
    ("case", "leave_at"),
    [
        row("accumulation", 1, "gradients accumulated over several batches: whole steps are saved"),
        row("accumulation", 3, "the shorter accumulation at the end of an epoch"),
        row(
            "workers",
            12,
            "the order of a shuffled data set with worker processes",
            "a partial last batch that is dropped (dataloader_drop_last)",
            "a seed of the data (data_seed)",
        ),
        row("lengths", 13, "batches of rows of like length (group_by_length)"),
        row("tokens", 12, "num_input_tokens_seen and total_flos", "padded batches of any length"),
        row("callback", 7, "the state of callbacks (ExportableState)"),
        row("restarts", 14, "cosine_with_restarts after a warmup", "optim=adafactor"),
        row(
            "optimizers",
            7,
            "an optimizer and a scheduler given as optimizers=(...)",
            "parameter groups with learning rates of their own",
        ),
        row("mean_of_epoch", 13, "the mean loss of an epoch (logging_strategy=epoch)"),
        row("bfloat16", 5, "mixed precision (bf16=True)"),
        row("compiled", 5, "torch_compile=True"),
        row("noise", 12, "noise in the embeddings (neftune_noise_alpha)", "tied weights"),
        row(
            "adapters",
            12,
            "several PEFT adapters that are trained at once, and which of them are active",
            "layers that PEFT trains whole (modules_to_save)",
        ),
        row("twice", 3, "one trainer whose train() is called twice"),
        row("stream", 4, "the first pass over an IterableDataset"),
        row("stream_that_counts", 14, "a later pass over an IterableDataset that goes on in each"),
        row("stream_of_epochs", 14, "a later pass over an IterableDataset that has set_epoch()"),
        row("stream_of_epochs", 9, "the end of a pass over an IterableDataset"),
        row("first_evaluation", 13, "eval_on_start: evaluated once"),
    ],
)
def test_it_ends_where_an_undisturbed_run_ends(tmp_path: Path, case: str, leave_at: int) -> None:
    whole, parts = play(tmp_path, case, leave_at)
    assert parts == whole


@pytest.mark.behaviour("max_steps raised between two machines", way="transformers")
def test_a_training_that_was_interrupted_goes_on_to_a_higher_number_of_steps(
    tmp_path: Path,
) -> None:
    whole, parts = play(tmp_path, "constant", 6, "--more", "20")
    assert parts == whole
    assert parts["step"][0] == 20


@pytest.mark.behaviour("a notice in the last step: the training ends", way="transformers")
def test_a_notice_in_the_last_step_leaves_nothing_to_resume(tmp_path: Path) -> None:
    whole = program(tmp_path / "whole", "constant", "--plain")
    assert whole.run() == EXIT_FINISHED, whole.output()
    noticed = program(tmp_path / "noticed", "constant", "--leave-at", "11")
    assert noticed.run(1) == EXIT_FINISHED, noticed.output()
    assert left_by(noticed) == left_by(whole)
    assert noticed.run(2) == EXIT_FINISHED, noticed.output()
    assert "is finished: nothing to do" in noticed.output()
    assert left_by(noticed) == left_by(whole)


@pytest.mark.parametrize(
    ("case", "leave_at"),
    [
        row(
            "random_batches",
            13,
            "random numbers drawn while rows are made into a batch, within an epoch",
            holds=False,
            because="accelerate loads a batch ahead, so the first batches after a resume have "
            "others, as with transformers' own checkpoints. Draw from a generator of each row",
        ),
        row(
            "random_rows",
            13,
            "random numbers drawn by worker processes, within an epoch",
            holds=False,
            because="workers start anew with their seeds and do not load what was trained, as "
            "with transformers' own checkpoints. Draw from a generator of each row",
        ),
        row(
            "other_data",
            13,
            "data with ignore_data_skip=True",
            holds=False,
            because="the argument says so: an interrupted epoch begins again with its first rows",
        ),
    ],
)
def test_it_ends_elsewhere(tmp_path: Path, case: str, leave_at: int) -> None:
    """Held as strictly: a case that begins to hold belongs into the table above."""
    whole, parts = play(tmp_path, case, leave_at)
    before = leave_at + 1
    assert parts["seen"][:before] == whole["seen"][:before]
    assert parts["seen"][before:] != whole["seen"][before:]
    assert parts["weights"] != whole["weights"]
