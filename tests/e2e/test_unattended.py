"""The control box is killed and stays dead: a run that trains loses no step, and nothing of it is
paid for beyond `limits.unattended_h`. Real daemon, machines, SSH and agents; no reaper runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotd.demo.box import Box, running_box, wait_for
from spotd.domain.node import Node
from tests.e2e.rig import SCENARIO, open_records
from tests.fixtures.waiting import LIMIT_S

UNATTENDED_S = 14.0
STEPS = 320  # of a twentieth of a second: more than the box's absence lets it take


def job_file(saved: Path) -> str:
    """Counts, and saves when it is told to stop."""
    return f"""\
name: lonely
resources:
  cpus: 1+
  use_spot: true
run: |
  n=$(cat {saved} 2>/dev/null || echo 0)
  echo "from $n"
  trap 'echo $n > {saved}; exit 0' TERM
  while [ $n -lt {STEPS} ]; do n=$((n + 1)); sleep 0.05; done
  echo $n > {saved}
spotd:
  stop_grace: 3s
"""


@pytest.fixture
def box(folder: Path) -> Iterator[Box]:
    settings = f"[limits]\nunattended_h = {UNATTENDED_S / 3600:.6f}\n"
    with running_box(folder, SCENARIO, settings) as running:
        yield running


def machines(box: Box) -> list[dict[str, Any]]:
    return sorted(box.meter(), key=lambda row: row["launched_at_us"])


def node_of(box: Box, job_id: str) -> Node:
    """The job's only machine, as the daemon has it on record."""
    records = open_records(box)
    try:
        [node] = records.nodes.of_job(job_id)
    finally:
        records.close()
    return node


def wipes(box: Box, job_id: str) -> list[str]:
    return [event["text"] for event in box.events(job_id) if event["kind"] == "wipe"]


@pytest.mark.e2e
def test_a_run_without_its_box_saves_ends_and_goes_on_when_the_box_is_back(
    box: Box, tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    job_id = box.submit(job_file(saved), "one")

    def trains() -> bool:
        return any(node["state"] == "running" for node in box.job(job_id)["nodes"])

    wait_for("the job to train", trains, LIMIT_S)
    wait_for("a renewal", lambda: node_of(box, job_id).lease.renewed_until_us, LIMIT_S)
    box.kill_daemon()
    [machine] = machines(box)
    assert machine["ended_at_us"] is None, "a dead box costs no healthy run"
    wait_for("the machine to be off", lambda: machines(box)[0]["ended_at_us"], LIMIT_S)

    [machine] = machines(box)
    assert machine["end_reason"] == "powered_off"
    steps = int(saved.read_text())
    assert 0 < steps < STEPS
    until_us = node_of(box, job_id).lease.renewed_until_us
    assert machine["ended_at_us"] < until_us, "before spot-reaper would end it"

    box.start_daemon()
    job = box.wait_phase(job_id, {"succeeded", "failed"}, LIMIT_S)
    assert job["phase"] == "succeeded", job["outcome_text"]
    assert job["failures"] == 0, "nobody's fault is not a crash"
    assert int(saved.read_text()) == STEPS
    assert len(machines(box)) == 2
    wait_for("nothing to be left", lambda: all(m["ended_at_us"] for m in machines(box)), LIMIT_S)
    wait_for("a word about every disk", lambda: len(wipes(box, job_id)) == 2, LIMIT_S)
    first, _ = wipes(box, job_id)
    assert "not wiped, as far as known: lost" in first, "nobody was there to hear of it"
