"""The guide's FSDP program: what it saves, and that the one with more lines goes on from there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

from tests.examples import run_to_end
from tests.fixtures.waiting import LIMIT_S
from tests.trainer.rig import ROOT

FOLDER = ROOT / "examples" / "newcomer" / "fsdp"


def train(file: str, folder: Path, *, steps: int, resume: Path | None = None) -> str:
    """Its output, of two ranks on the CPU."""
    folder.mkdir(exist_ok=True)
    env = {**os.environ, "STEPS": str(steps), "STEP_S": "0", "OMP_NUM_THREADS": "1"}
    env |= {"CUDA_VISIBLE_DEVICES": "", "SPOTD_RESUME": str(resume or "")}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node", "2", run_to_end.__file__, str(FOLDER / file)],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_it_goes_on_and_ends_with_the_same_weights(tmp_path: Path) -> None:
    alone, first, second = tmp_path / "alone", tmp_path / "first", tmp_path / "second"
    assert "step 20 " in train("train.py", alone, steps=40)
    train("resumes.py", first, steps=20)
    said = train("resumes.py", second, steps=40, resume=first / "out" / "checkpoint_20.pt")
    assert "step 20 " not in said, "it began anew"
    one, other = (
        torch.load(folder / "out" / "checkpoint_40.pt", weights_only=True)
        for folder in (alone, second)
    )
    assert one["step"] == other["step"] == 40
    assert one["model"].keys() == other["model"].keys()
    for name, weights in one["model"].items():
        assert torch.equal(weights, other["model"][name]), name
