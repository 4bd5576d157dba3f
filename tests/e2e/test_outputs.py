"""What a program leaves comes into its user's hands, whatever ends its machines."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import pytest

from spotd.cli.app import run as spotctl
from spotd.demo.box import Box, running_box, wait_for
from spotd.domain.phase import FINISHED
from tests.e2e.rig import FINISH_TIMEOUT_S, SCENARIO, UP_TIMEOUT_S, Run
from tests.spotd.cli.test_pull_files import tree

NOTICE_S = 20.0
# Writes a report for each machine, and ends when it finds that it runs for the second time.
PROGRAM = """\
mkdir -p reports final
trap 'echo stopped > reports/end-$SPOTD_GENERATION; exit 143' TERM
echo began > reports/begin-$SPOTD_GENERATION
[ "$SPOTD_GENERATION" = 1 ] && while :; do sleep 0.1; done
echo weights > final/model.bin
"""
WHOLE = {
    "reports/begin-1": b"began\n",
    "reports/end-1": b"stopped\n",
    "reports/begin-2": b"began\n",
    "final/model.bin": b"weights\n",
}


def job_file(outputs: str = "") -> str:
    program = "".join(f"  {line}\n" for line in PROGRAM.splitlines())
    return f"""\
name: script
resources: {{infra: "local-aws", cpus: 1+, use_spot: true}}
run: |
{program}
spotd: {{stop_grace: 15s{outputs}}}
"""


def started(run: Run) -> dict[str, Any]:
    """The machine of the program, once it has begun to write."""

    def begun() -> dict[str, Any] | None:
        nodes = [n for n in run.box.job(run.job_id)["nodes"] if n["state"] == "running"]
        return nodes[0] if nodes else None

    node = wait_for("a running machine", begun, UP_TIMEOUT_S)
    assert node is not None
    return node


def pull(box: Box, job_id: str, folder: Path) -> dict[str, bytes]:
    assert (
        spotctl(["--socket", str(box.socket_path), "outputs", job_id, "--into", str(folder)]) == 0
    )
    return tree(folder)


def finish(run: Run, tmp_path: Path) -> dict[str, Any]:
    ended = run.box.wait_phase(run.job_id, set(FINISHED), FINISH_TIMEOUT_S)
    assert ended["phase"] == "succeeded", ended["outcome_text"]
    assert not ended["kept_nothing"]
    assert pull(run.box, run.job_id, tmp_path / "kept") == WHOLE
    return ended


@pytest.mark.e2e
def test_a_pause_keeps_what_was_there(folder: Path, python: Path, tmp_path: Path) -> None:
    with running_box(folder, SCENARIO, python=python) as box:
        run = Run(box, box.submit(job_file(), "script"), Random(1))
        started(run)
        socket = ["--socket", str(box.socket_path)]
        assert spotctl([*socket, "pause", run.job_id]) == 0
        box.wait_phase(run.job_id, {"paused"}, UP_TIMEOUT_S)
        kept = pull(box, run.job_id, tmp_path / "paused")
        assert kept == {name: data for name, data in WHOLE.items() if name.endswith("1")}
        assert spotctl([*socket, "resume", run.job_id]) == 0
        ended = finish(run, tmp_path)
        assert ended["outcome_text"].endswith("spotctl outputs script")


@pytest.mark.e2e
def test_a_notice_leaves_time_for_them(folder: Path, python: Path, tmp_path: Path) -> None:
    with running_box(folder, SCENARIO, python=python) as box:
        run = Run(box, box.submit(job_file(", outputs: [reports, final]"), "script"), Random(1))
        run.preempt(started(run)["instance_id"], NOTICE_S)
        finish(run, tmp_path)


@pytest.mark.e2e
def test_a_failed_job_gives_its_files_back(folder: Path, python: Path, tmp_path: Path) -> None:
    text = job_file(", max_restarts_on_errors: 0").replace("while :;", "exit 3; while :;")
    with running_box(folder, SCENARIO, python=python) as box:
        job_id = box.submit(text, "script")
        ended = box.wait_phase(job_id, set(FINISHED), FINISH_TIMEOUT_S)
        assert ended["phase"] == "failed"
        assert pull(box, job_id, tmp_path / "kept") == {"reports/begin-1": b"began\n"}
        done = subprocess.run(
            [str(python.parent / "spotctl"), "--socket", str(box.socket_path), "outputs", job_id]
            + ["-o", "json"],
            capture_output=True,
            check=True,
            text=True,
        )
        (item,) = json.loads(done.stdout)["items"]
        assert (item["path"], item["bytes"]) == ("reports/begin-1", 6)
