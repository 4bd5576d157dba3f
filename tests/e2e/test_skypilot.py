"""An unmodified SkyPilot task, by `spotctl`, from an installed wheel."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from spotd.demo.box import Box, running_box, wait_for
from tests.e2e.rig import SCENARIO, open_records
from tests.fixtures.waiting import LIMIT_S

TASK = Path(__file__).parent / "task"
NODES = 2
STEPS = 150


def spotctl(box: Box, *words: str, timeout_s: float = 60.0) -> str:
    """What it prints; it must exit 0."""
    command = [str(box.python.parent / "spotctl"), "--socket", str(box.socket_path), *words]
    done = subprocess.run(
        command,
        capture_output=True,
        check=False,
        text=True,
        cwd=TASK,
        env=box.environ(),
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def seen(bucket: Path) -> dict[tuple[int, int], dict[str, Any]]:
    """(rank, how often it was started before) -> what the script found around it."""
    found = {}
    for path in bucket.glob("seen-*.json"):
        _, rank, number = path.stem.split("-")
        found[int(rank), int(number)] = json.loads(path.read_text())
    return found


def check(around: dict[str, Any], rank: int, generation: int, job: dict[str, Any]) -> None:
    """What SkyPilot promises to a task."""
    gang = [node for node in job["nodes"] if node["generation"] == generation]
    hosts = [node["host"] for node in sorted(gang, key=lambda node: node["rank"])]
    assert around["SKYPILOT_TASK_ID"] == f"sky-{job['id']}", "the same in every generation"
    assert around["SKYPILOT_NODE_IPS"].splitlines() == hosts
    assert around["SKYPILOT_NODE_RANK"] == str(rank)
    assert around["SKYPILOT_NUM_NODES"] == str(NODES)
    assert around["SKYPILOT_NUM_GPUS_PER_NODE"] == "8"
    assert around["GREETING"] == "hello"
    assert around["made_by_setup"] == f"{rank} of {NODES}"
    assert around["words"] == "some words"
    assert around["sky_workdir"] == around["cwd"]


def all_gone(box: Box, job_id: str) -> bool:
    return all(node["state"] == "gone" for node in box.job(job_id)["nodes"])


@pytest.mark.e2e
def test_it_runs_to_success_through_a_preemption(python: Path, folder: Path) -> None:
    bucket = folder / "bucket"
    bucket.mkdir()
    with running_box(folder / "box", SCENARIO, python=python) as box:
        spotctl(box, "run", "task.yaml", "--env", f"BUCKET={bucket}")
        job = json.loads(spotctl(box, "show", "sky", "-o", "json"))
        steps = [bucket / f"step-{rank}" for rank in range(NODES)]
        wait_for("steps of both ranks", lambda: all(path.exists() for path in steps), LIMIT_S)
        first = next(node for node in job["nodes"] if node["rank"] == 0)
        box.preempt(first["instance_id"], kind="preempt", mode="notice", notice_s=6.0)
        spotctl(box, "wait", "sky", timeout_s=LIMIT_S)
        ended = box.job(job["id"])
        assert ended["phase"] == "succeeded"
        assert (ended["generation"], ended["failures"]) == (2, 0)
        assert [path.read_text() for path in steps] == [str(STEPS)] * NODES
        around = seen(bucket)
        assert set(around) == {(rank, number) for rank in range(NODES) for number in range(2)}
        for (rank, number), found in around.items():
            check(found, rank, number + 1, ended)
        assert "rank 1 has done 150 steps" in spotctl(box, "logs", "sky", "--rank", "1")
        wait_for("every machine to be seen gone", lambda: all_gone(box, job["id"]), LIMIT_S)
        assert all(row["ended_at_us"] for row in box.meter())
        assert len(box.meter()) == 2 * NODES
        records = open_records(box)
        try:
            assert {segment.state for segment in records.ledger.segments(job["id"])} == {"closed"}
        finally:
            records.close()
