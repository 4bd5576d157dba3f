"""Unmodified programs of transformers and Lightning lose their machine, and end in the same bits.

They go on from what they saved, and their user gets their own files back.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from spotd.cli.app import run as spotctl
from spotd.demo.box import Box, running_box, wait_for
from spotd.domain.phase import FINISHED
from tests.e2e.rig import FINISH_TIMEOUT_S, SCENARIO, UP_TIMEOUT_S, Run
from tests.trainer.rig import ROOT

NOTICE_S = 20.0
TRANSFORMERS = ("transformers", "--steps 150 --save-steps 40", "checkpoint-150/optimizer.pt")
LIGHTNING = ("lightning", "--epochs 8", "step=160.ckpt")


def job_file(python: Path, example: str, arguments: str) -> str:
    program = f"{shlex.quote(str(python))} {ROOT / 'examples' / example / 'train.py'}"
    resume = '--ckpt-path "$SPOTD_RESUME"' if example.startswith("lightning") else ""
    return f"""\
name: script
resources: {{infra: "local-aws", cpus: 1+, use_spot: true}}
envs: {{OMP_NUM_THREADS: "1"}}
run: {program} {arguments} --step-time-ms 60 --out out {resume}
spotd:
  checkpoint: {{mode: directory, path: out, keep: 3}}
  stop_grace: 15s
"""


def pull(box: Box, job_id: str, folder: Path) -> None:
    """Download what the job finished with, as its user does."""
    socket = ["--socket", str(box.socket_path)]
    assert spotctl([*socket, "ckpt", "pull", job_id, "--into", str(folder)]) == 0


def assert_equal(one: Any, other: Any) -> None:
    """Tensors bit for bit."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, Mapping):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_equal(left, right)
    else:
        assert one == other


def state_of(path: Path) -> Any:
    found = torch.load(path, weights_only=True)
    names = ("state_dict", "optimizer_states", "global_step")
    return {name: found[name] for name in names} if path.suffix == ".ckpt" else found


def first_checkpoint(run: Run) -> dict[str, Any]:
    def ask() -> dict[str, Any] | None:
        job = run.box.job(run.job_id)
        return job if job["last_checkpoint"] else None

    job = wait_for("a checkpoint", ask, UP_TIMEOUT_S)
    assert job is not None
    return next(node for node in job["nodes"] if node["state"] == "running")


@pytest.mark.behaviour(
    "weights and optimizers of transformers' and Lightning's trainers",
    way="directory mode",
)
@pytest.mark.soak
@pytest.mark.e2e
@pytest.mark.xdist_group("kills of others")
@pytest.mark.parametrize("how", ["notice", "reset"])
@pytest.mark.parametrize("case", [TRANSFORMERS, LIGHTNING], ids=lambda case: case[0])
def test_it_goes_on_from_what_it_saved(
    folder: Path, python: Path, tmp_path: Path, case: tuple[str, str, str], how: str
) -> None:
    library, arguments, last = case
    pytest.importorskip(library, reason="pip install '.[examples]'")
    example = f"{library}-unmodified"
    with running_box(folder, SCENARIO, python=python) as box:
        run = Run(box, box.submit(job_file(python, example, arguments), "script"), Random(1))
        node = first_checkpoint(run)
        if how == "notice":
            run.preempt(node["instance_id"], NOTICE_S)
        else:
            run.die(node["instance_id"], how)
        ended = box.wait_phase(run.job_id, set(FINISHED), FINISH_TIMEOUT_S)
        assert ended["phase"] == "succeeded", ended["outcome_text"]
        assert ended["generation"] == 2
        pull(box, run.job_id, tmp_path / "kept")
        said = [e["text"] for e in box.events(run.job_id) if e["kind"] == "claimed"]
    assert not said[-1].endswith("step 0"), "it began afresh"
    program = [str(python), str(ROOT / "examples" / example / "train.py"), *arguments.split()]
    subprocess.run([*program, "--out", "out"], cwd=tmp_path, check=True, capture_output=True)
    assert_equal(state_of(tmp_path / "kept" / last), state_of(tmp_path / "out" / last))
