"""`spotctl cost compare` on the published case study and through the real API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotd.api_client.client import Client
from spotd.api_routes import routes
from tests.spotd.api.rig import JOB_FILE, SPOT, Rig, story
from tests.spotd.cli.conftest import Spotctl

CASE = Path(__file__).parents[1] / "money" / "case_study.toml"
Captured = pytest.CaptureFixture[str]


def compare_rows(
    spotctl: Spotctl, rig: Rig | None, capsys: Captured, *arguments: str
) -> dict[str, Any]:
    assert spotctl(rig, "cost", "compare", *arguments, "-o", "json") == 0
    data = json.loads(capsys.readouterr().out)
    return {row["name"]: (row["on_demand"], row["actual"]) for row in data["comparison"]}


@pytest.mark.req("MON-09")
def test_case_study_is_recomputed_from_its_inputs(spotctl: Spotctl, capsys: Captured) -> None:
    """Its table says 2,600 hours (of nodes, called GPU-hours), $41,500 and $16.00 (of a node)
    beside 2,496, $11,200 and $4.49; 0 and 7 interruptions; 0 and 4.2 h lost; no difference in
    quality, which nobody can know from it; 14 and 16 days."""
    rows = compare_rows(spotctl, None, capsys, "--file", str(CASE))
    assert list(rows) == [
        "GPU-hours",
        "cost",
        "a GPU-hour",
        "a useful GPU-hour",
        "interruptions",
        "machine-hours lost",
        "quality of the model",
        "time to completion",
    ]
    assert rows["GPU-hours"] == (2454.4, 2496.0)
    assert rows["cost"] == (4986.8, 3894.96)
    assert rows["a GPU-hour"] == pytest.approx((2.0318, 1.5605), abs=1e-4)
    assert rows["a useful GPU-hour"] == pytest.approx((2.0318, 1.5869), abs=1e-4)
    assert rows["interruptions"] == (None, 9)
    assert rows["machine-hours lost"] == pytest.approx((0.0, 5.2))
    assert rows["quality of the model"] == (None, None)
    assert rows["time to completion"] == (306.8, 384)
    assert spotctl(None, "cost", "compare", "--file", str(CASE)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 8 + 3, "a title, eight rows, and what was claimed"
    assert lines[2].split()[:3] == ["cost", "$4,986.80", "$3,894.96"]
    assert lines[-1] == "claimed saving: 73.0 %; by line items 23.2 %, the rest has no line item"


@pytest.mark.req("MON-09")
def test_comparison_of_a_recorded_job(rig: Rig, spotctl: Spotctl, capsys: Captured) -> None:
    job_id = story(rig)
    data = Client(rig.socket).call(routes.JOB_COST_REPORT(job=job_id))
    rows = compare_rows(spotctl, rig, capsys, "gpt")
    assert len(rows) == 8
    needed = next(row for row in data["on_demand"] if row["basis"] == data["saving_basis"])
    assert rows["cost"] == (needed["total_usd"], data["total_usd"])
    assert rows["GPU-hours"] == pytest.approx((8 * needed["node_hours"], data["billed_gpu_hours"]))
    assert rows["a useful GPU-hour"][1] == pytest.approx(data["usd_per_useful_gpu_hour"])
    assert rows["interruptions"] == (None, 1)
    lost_h = data["billed_node_hours"] - needed["node_hours"]
    assert rows["machine-hours lost"] == pytest.approx((0.0, lost_h), abs=1e-5)
    job = rig.store.jobs.find(job_id)
    assert job is not None
    elapsed_h = (rig.clock.now_us() - job.created_at_us) / 3.6e9
    assert rows["time to completion"][1] == pytest.approx(elapsed_h, abs=1e-5)


def test_unknown_values_stay_empty(rig: Rig, spotctl: Spotctl, capsys: Captured) -> None:
    """A program that reports no steps, on two machines."""
    text = "num_nodes: 2\n" + JOB_FILE + "  slow_network: true\n"
    job_id = rig.submit(ago_s=4000, text=text)
    for rank in (0, 1):
        rig.launch(job_id, SPOT, ago_s=3600, rank=rank)
    rows = compare_rows(spotctl, rig, capsys, "gpt")
    assert rows["a useful GPU-hour"] == (None, None)
    assert rows["machine-hours lost"] == (None, None)
    assert rows["interruptions"] == (None, 0)
    assert rows["time to completion"] == pytest.approx((1.0, 4000 / 3600), rel=1e-3)


@pytest.mark.parametrize("arguments", [(), ("gpt", "--file", str(CASE))])
def test_job_and_file_exclude_each_other(
    spotctl: Spotctl, capsys: Captured, arguments: tuple[str, ...]
) -> None:
    assert spotctl(None, "cost", "compare", *arguments) == 2
    assert "name one job, or --file" in capsys.readouterr().err
