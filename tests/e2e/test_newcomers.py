"""A newcomer's programs, as they are, lose their machine; the user gets the files and the truth."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
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
NEWCOMERS = ROOT / "examples" / "newcomer"


@dataclass(frozen=True)
class Program:
    """A newcomer's program: how it is started, and the file that it ends with.

    Its machine is taken away once a checkpoint of step `reached` is saved: one that resumes never
    writes a lower number again. Without a number in its name that is a count.
    """

    name: str
    result: str
    resumes: bool
    reached: int = 60
    folder: str = "out"
    command: str = "train.py"
    requires: str = "torch"


PROGRAMS = [
    Program("loop", "out/model_600.bin", resumes=False),
    Program("trainer", "out/final/model.safetensors", resumes=False, requires="transformers"),
    Program(
        "lightning",
        "out/checkpoints/epoch=7-step=640.ckpt",
        resumes=False,
        reached=160,
        requires="lightning",
    ),
    Program(
        "ddp",
        "out/checkpoint.pt",
        resumes=True,
        reached=1,
        command="-m torch.distributed.run --nproc-per-node 2 train.py",
    ),
    Program("beside", "final/model.bin", resumes=True, folder="checkpoints"),
]


def job_file(program: Program, python: Path) -> str:
    return f"""\
name: {program.name}
workdir: {NEWCOMERS / program.name}
resources: {{infra: "local-aws", cpus: 1+, use_spot: true}}
envs: {{OMP_NUM_THREADS: "1", STEPS: "600", EPOCHS: "8"}}
run: {shlex.quote(str(python))} {program.command}
spotd:
  checkpoint: {{mode: directory, path: {program.folder}}}
  stop_grace: 5s
"""


def machine_at(run: Run, reached: int) -> dict[str, Any]:
    """The machine of the program, once a checkpoint of that step is saved."""

    def ask() -> dict[str, Any] | None:
        job = run.box.job(run.job_id)
        saved = job["last_checkpoint"]
        return job if saved and saved["step"] >= reached else None

    job = wait_for("a checkpoint", ask, UP_TIMEOUT_S)
    assert job is not None
    return next(node for node in job["nodes"] if node["state"] == "running")


def submit(box: Box, program: Program, python: Path, folder: Path) -> str:
    path = folder / "job.yaml"
    path.write_text(job_file(program, python))
    assert spotctl(["--socket", str(box.socket_path), "run", "-d", str(path)]) == 0
    return box.job(program.name)["id"]


@pytest.mark.e2e
@pytest.mark.xdist_group("kills of others")
@pytest.mark.parametrize("how", ["notice", pytest.param("reset", marks=pytest.mark.soak)])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_its_files_and_the_truth(
    folder: Path, python: Path, tmp_path: Path, program: Program, how: str
) -> None:
    pytest.importorskip(program.requires, reason="pip install '.[examples]'")
    with running_box(folder, SCENARIO, python=python) as box:
        run = Run(box, submit(box, program, python, tmp_path), Random(1))
        node = machine_at(run, program.reached)
        if how == "notice":
            run.preempt(node["instance_id"], NOTICE_S)
        else:
            run.die(node["instance_id"], how)
        ended = box.wait_phase(run.job_id, set(FINISHED), FINISH_TIMEOUT_S)
        assert ended["phase"] == "succeeded", ended["outcome_text"]
        assert (ended["generation"], ended["kept_nothing"]) == (2, False)
        kept = tmp_path / "kept"
        socket = ["--socket", str(box.socket_path)]
        assert spotctl([*socket, "outputs", run.job_id, "--into", str(kept)]) == 0
        events = box.events(run.job_id)
        print(*(f"{event['kind']}: {event['text']}" for event in events), sep="\n")
    assert (kept / program.result).exists(), sorted(kept.rglob("*"))
    if program.result.endswith((".bin", ".pt", ".ckpt")):
        torch.load(kept / program.result, weights_only=True)
    (recovered,) = (event["text"] for event in events if event["kind"] == "recovered")
    assert "lost: " in recovered or "no work is lost" in recovered
    told = [event for event in events if event["kind"] == "not_resumed"]
    assert bool(told) is not program.resumes, told
    assert [row["kind"] for row in ended["verdicts"]] == [] if program.resumes else ["not_resumed"]
