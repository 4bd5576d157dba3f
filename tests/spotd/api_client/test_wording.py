"""How a job goes on, in `spotctl cost JOB`, through the real API."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from spotd.domain.states import LeaveReason
from tests.spotd.api.rig import JOB_FILE, OFFERS, SPOT, Rig
from tests.spotd.cli.conftest import Spotctl

WORK = JOB_FILE + "  work: 10000 steps\n  budget: {max_cost_usd: 200}\n"


def trained(rig: Rig, text: str = WORK) -> None:
    """1,190 steps in 58 minutes; taken away; 600 more in 45, and it goes on."""
    job_id = rig.submit(ago_s=6330, text=text)
    first = rig.launch(job_id, SPOT, ago_s=6320)
    rig.train(first, ago_s=6270, until_s=2750, first=0, last=1190)
    second = rig.launch(job_id, OFFERS[2], ago_s=2790)
    rig.leave(first, 2720, LeaveReason.PREEMPTED, "preempt notice")
    rig.train(second, ago_s=2730, until_s=30, first=1190, last=1790)


def lines(out: str) -> dict[str, str]:
    pairs = (re.split(r"\s{2,}", line, maxsplit=1) for line in out.splitlines() if "  " in line)
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def job_cost(rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]) -> Any:
    assert spotctl(rig, "cost", "gpt", "-o", "json") == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.req("BUD-04")
def test_completion_of_a_job_with_known_work(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(rig)
    data = job_cost(rig, spotctl, capsys)
    estimate = data["outlook"]
    assert (estimate["step"], estimate["steps"], estimate["steps_left"]) == (1790, 10_000, 8210)
    assert estimate["step_s"] == pytest.approx((3520 + 2700) / 1790, rel=1e-3)
    assert estimate["left_hours"] == pytest.approx(8210 * estimate["step_s"] / 3600, rel=1e-5)
    assert estimate["usd_per_hour"] == 25.5
    hours, ends = estimate["hours"], estimate["final_usd"]
    assert 0.85 * estimate["left_hours"] < hours["low"] < hours["middle"] < hours["high"]
    assert data["spend_usd"] < ends["low"] < ends["middle"] < ends["high"]
    on_demand = estimate["on_demand"]
    assert on_demand["final_usd"] == pytest.approx(
        data["on_demand_usd"] + 51.0 * estimate["left_hours"], rel=1e-4
    )
    assert on_demand["saving"] == pytest.approx(
        1 - ends["middle"] / on_demand["final_usd"], abs=1e-4
    )
    assert on_demand["saving"] <= on_demand["discount"]
    assert spotctl(rig, "cost", "gpt") == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100
    shown = lines(out)
    assert shown["now"] == "$25.50/h; $22.61/h, 24 h mean"
    assert shown["per useful hour"] == "$22.97 a machine-hour of steps"
    assert shown["steps"].startswith("1,790 of 10,000 (1,790 saved); 8,210 left; 3.47 s each")
    assert re.fullmatch(
        r"in \d+h\d*m?, \d{4}-\d\d-\d\d \d\d:\d\d[+-]\d\d:\d\d; 90 %: in \d+h\d*m? to \d+h\d*m?",
        shown["finish"],
    )
    assert re.match(r"\$2\d\d\.\d\d of machines; 90 %: \$1\d\d\.\d\d to ", shown["at its end"])
    assert shown["used up"].startswith("its max_cost_usd of $200.00 on ")
    assert re.search(r"\d\d\.\d % saved, \d\d\.\d % off$", shown["... on demand"])
    assert shown["by"] == "pace: 2 stretches of its own training"
    assert "1 of this job, and 12.5 min as planned" in out


@pytest.mark.parametrize(
    ("text", "unknown", "advice"),
    [
        (
            JOB_FILE,
            "not known: neither the job file nor the program says how much work there is",
            "spotd.work: 100000 steps",
        ),
        (
            WORK.replace("engine: spotd, every_steps: 100", "engine: none"),
            "not known: it keeps no checkpoints",
            "checkpoint: {engine: spotd}",
        ),
    ],
)
def test_unknown_completion_says_why(
    rig: Rig,
    spotctl: Spotctl,
    capsys: pytest.CaptureFixture[str],
    text: str,
    unknown: str,
    advice: str,
) -> None:
    trained(rig, text)
    data = job_cost(rig, spotctl, capsys)["outlook"]
    assert data["hours"] is data["finish"] is data["final_usd"] is data["on_demand"] is None
    assert data["usd_per_hour"] == 25.5
    assert spotctl(rig, "cost", "gpt") == 0
    shown = lines(capsys.readouterr().out)
    assert shown["finish"].startswith(unknown)
    assert advice in shown["try"]
    assert "at its end" not in shown


def test_storage_and_egress_until_the_end(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.checkpoint_store = "s3://runs/team"
    trained(rig)
    data = job_cost(rig, spotctl, capsys)
    month = data["kept"]["usd_per_month"]
    hours = data["outlook"]["hours"]["middle"]
    assert data["outlook"]["storage_left_usd"] == pytest.approx(month * hours / 730, abs=1e-6)
    assert spotctl(rig, "cost", "gpt") == 0
    assert "of storage and egress until then" in lines(capsys.readouterr().out)["... on top"]


def test_nothing_is_estimated_before_the_first_step(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.launch(rig.submit(ago_s=100, text=WORK), SPOT, ago_s=90)
    assert spotctl(rig, "cost", "gpt") == 0
    assert lines(capsys.readouterr().out)["finish"] == "not known: no steps of it were measured yet"
