"""What a job's time went into and what it saved, by its records, in every view the same."""

from __future__ import annotations

from typing import Any

import pytest

from spotd.domain.states import LeaveReason, Outcome
from tests.fixtures.path_client import PathClient
from tests.spotd.api.rig import OFFERS, SPOT, Rig, crash, story

SCRIPT = """
name: script
resources: {accelerators: "H100:8"}
run: python train.py
spotd: {checkpoint: {mode: directory, path: out}}
"""


def run_script(rig: Rig, *, anew: bool = False, outcome: Outcome | None) -> str:
    """A script runs for 1,000 s, is lost 200 s after its save, and runs for another 1,000 s."""
    job_id = rig.submit("script", ago_s=4000, text=SCRIPT)
    first = rig.launch(job_id, SPOT, ago_s=3900)
    rig.change(first, 3860, chosen=True)
    rig.say(first, 3850, "claimed", step=0, manifest="")
    rig.say(first, 3800, "started")
    rig.say(first, 3000, "checkpoint", step=7, manifest="m7", bytes=10)
    rig.say(first, 2800, "warning", text="its last words")
    rig.leave(first, 2790, LeaveReason.LOST, "gone")
    second = rig.launch(job_id, OFFERS[2], ago_s=2700)
    rig.change(second, 2660, chosen=True)
    rig.say(second, 2650, "claimed", step=7, manifest="m7")
    rig.say(second, 2600, "started")
    if anew:
        about = {"restored": 7}
        rig.say(second, 2500, "warning", text="anew", verdict="not_resumed", about=about)
    rig.say(second, 1600, "exited", code=0, ranks={"0": 0})
    rig.leave(second, 1590, LeaveReason.DONE, "done")
    if outcome is not None:
        rig.say(second, 1600, "checkpoint", step=9, manifest="m9", bytes=10, final=True)
        rig.finish(job_id, 1580, outcome)
    return job_id


def hours(data: dict[str, Any]) -> dict[str, float]:
    return {row["use"]: round(row["node_hours"] * 3600) for row in data["hours"]}


def test_a_script_s_time_is_told_by_its_saves(rig: Rig, client: PathClient) -> None:
    job_id = run_script(rig, outcome=Outcome.SUCCEEDED)
    data = client.get(f"/v1/jobs/{job_id}/cost/report")
    assert hours(data)["useful"] == pytest.approx(800 + 1000, abs=2)
    assert hours(data)["replayed"] == pytest.approx(200, abs=2)
    assert "untold" not in hours(data)
    assert 0 < data["saving"] < data["discount"]
    job = client.get(f"/v1/jobs/{job_id}")
    assert job["lost_s"] == pytest.approx(200, abs=2)


def test_one_that_began_anew_has_lost_all(rig: Rig, client: PathClient) -> None:
    job_id = run_script(rig, anew=True, outcome=Outcome.SUCCEEDED)
    data = client.get(f"/v1/jobs/{job_id}/cost/report")
    assert hours(data)["useful"] == pytest.approx(1000, abs=2)
    assert hours(data)["replayed"] == pytest.approx(1000, abs=2)
    job = client.get(f"/v1/jobs/{job_id}")
    assert job["lost_s"] == pytest.approx(1000, abs=2)
    assert (job["recoveries"], job["restarts_anew"]) == (0, 1)


def test_while_it_runs_its_saving_is_not_known(rig: Rig, client: PathClient) -> None:
    data = client.get(f"/v1/jobs/{run_script(rig, outcome=None)}/cost/report")
    assert hours(data)["untold"] > 0
    assert (data["saving"], data["savings"]) == (None, None)


@pytest.mark.parametrize("make", [crash, lambda rig: run_script(rig, outcome=Outcome.FAILED)])
def test_a_job_that_failed_saved_nothing(rig: Rig, client: PathClient, make: Any) -> None:
    job_id = make(rig)
    report = client.get(f"/v1/jobs/{job_id}/cost/report")
    cost = client.get(f"/v1/jobs/{job_id}/cost")
    assert report["saving"] is cost["saving"] is cost["on_demand_usd"] is None
    assert report["discount"] > 0, "the price was lower all the same"


def test_every_view_tells_the_same_saving(rig: Rig, client: PathClient) -> None:
    job_id = story(rig)
    crash(rig)
    report, cost = (
        client.get(f"/v1/jobs/{job_id}/cost/{name}".rstrip("/")) for name in ("report", "")
    )
    listed = client.get("/v1/costs")["items"]
    whole = client.get("/v1/costs/report")
    told = next(row["saving"] for row in listed if row["job_id"] == job_id)
    assert report["saving"] == cost["saving"] == told == whole["saving"]
    assert report["saving"] == report["savings"]["fraction"]
    assert report["on_demand"][1]["total_usd"] == cost["on_demand_usd"]
