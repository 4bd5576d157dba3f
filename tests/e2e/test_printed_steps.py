"""A script without a checkpoint folder loses its machine; its printed steps tell what is lost."""

from __future__ import annotations

import shlex
from pathlib import Path
from random import Random
from typing import Any

import pytest

from spotd.cli.app import run as spotctl
from spotd.demo.box import running_box, wait_for
from spotd.domain.phase import FINISHED
from tests.e2e.rig import FINISH_TIMEOUT_S, SCENARIO, UP_TIMEOUT_S, Run

# It keeps its step in a file outside of the machine, as a program does that writes to a bucket.
PROGRAM = """
import os, pathlib, sys, time
kept = pathlib.Path(sys.argv[1])
resumes = os.environ["RESUMES"] == "yes"
step = int(kept.read_text()) if resumes and kept.exists() else 0
while step < 120:
    step += 1
    time.sleep(0.1)
    print(f"step {step}/120: loss {1 / step:.3f}", flush=True)
    kept.with_suffix(".new").write_text(str(step))
    kept.with_suffix(".new").replace(kept)
"""


def job_file(python: Path, folder: Path, kept: Path, resumes: str) -> str:
    command = f"{shlex.quote(str(python))} train.py {shlex.quote(str(kept))}"
    return f"""\
name: script
workdir: {folder}
resources: {{infra: "local-aws", cpus: 1+, use_spot: true}}
envs: {{RESUMES: "{resumes}"}}
run: {command}
"""


def reached(kept: Path, step: int) -> Any:
    return kept.exists() and int(kept.read_text()) >= step


@pytest.mark.e2e
@pytest.mark.xdist_group("kills of others")
@pytest.mark.parametrize("resumes", ["yes", "no"])
def test_printed_steps_tell_what_is_lost(
    folder: Path, python: Path, tmp_path: Path, resumes: str
) -> None:
    workdir, kept = tmp_path / "work", tmp_path / "kept"
    workdir.mkdir()
    (workdir / "train.py").write_text(PROGRAM)
    path = tmp_path / "job.yaml"
    path.write_text(job_file(python, workdir, kept, resumes))
    with running_box(folder, SCENARIO, python=python) as box:
        socket = ["--socket", str(box.socket_path)]
        assert spotctl([*socket, "run", "-d", "--no-checkpoints", str(path)]) == 0
        run = Run(box, box.job("script")["id"], Random(1))
        wait_for("60 steps", lambda: reached(kept, 60), UP_TIMEOUT_S)
        (node,) = (one for one in box.job(run.job_id)["nodes"] if one["state"] == "running")
        run.preempt(node["instance_id"], 8.0)
        ended = box.wait_phase(run.job_id, set(FINISHED), FINISH_TIMEOUT_S)
        assert ended["phase"] == "succeeded", ended["outcome_text"]
        assert ended["generation"] == 2
        events = box.events(run.job_id)
        print(*(f"{event['kind']}: {event['text']}" for event in events), sep="\n")
    (recovered,) = (event["text"] for event in events if event["kind"] == "recovered")
    assert recovered.endswith("is lost, unless it keeps its work elsewhere"), "not known yet"
    told = [event["text"] for event in events if event["kind"] == "not_resumed"]
    if resumes == "yes":
        assert told == []
        assert ended["lost_s"] < 5.0
        assert (ended["recoveries"], ended["restarts_anew"]) == (1, 0)
    else:
        (text,) = told
        assert ended["lost_s"] > 5.0
        assert text.startswith(
            "the program has started from the beginning: it prints step 1, and an earlier"
        )
        assert (ended["recoveries"], ended["restarts_anew"]) == (0, 1)
