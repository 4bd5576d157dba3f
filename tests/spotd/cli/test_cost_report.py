"""`spotctl cost report`, through the real API."""

from __future__ import annotations

import csv
import json
from decimal import Decimal
from pathlib import Path

import pytest

from spotd.api_client.client import Client
from spotd.api_routes import routes
from spotd.base.errors import UserError
from spotd.cli.cost_report import when_us
from spotd.domain.states import LeaveReason
from tests.spotd.api.rig import JOB_FILE, OFFERS, SPOT, Rig, story
from tests.spotd.cli.conftest import Spotctl

CASE = Path(__file__).parents[1] / "money" / "case_study.toml"


@pytest.fixture
def client(rig: Rig) -> Client:
    return Client(rig.socket)


@pytest.mark.req("CST-03", "CST-10")
def test_case_study_report(spotctl: Spotctl, capsys: pytest.CaptureFixture[str]) -> None:
    assert spotctl(None, "cost", "report", "--file", str(CASE)) == 0
    out = capsys.readouterr().out
    assert "total                $3,894.96" in out
    assert "per useful GPU-hour  $1.59" in out
    assert "same hours    312.000  $5,070.00       -     23.5 %" in out
    assert "claimed in all: $11,200.00, of which $7,305.04 (65 %) has no line item" in out
    assert "claimed saving: 73.0 %; by line items 23.2 %, the rest has no line item" in out


def test_report_adds_up_to_the_ledger(rig: Rig, client: Client) -> None:
    job_id = story(rig)
    rig.submit("idle")
    data = client.call(routes.JOB_COST_REPORT(job=job_id))
    spent = client.call(routes.JOB_COST(job=job_id))["spend_usd"]
    assert data["compute_usd"] == spent
    assert sum(item["cost_usd"] for item in data["items"]) == pytest.approx(data["total_usd"])
    assert sum(item["node_hours"] for item in data["hours"]) == pytest.approx(
        data["billed_node_hours"], abs=1e-5
    )
    assert sum(item["cost_usd"] for item in data["hours"]) == pytest.approx(spent, abs=1e-5)
    assert {item["use"] for item in data["hours"]} >= {"useful", "startup", "idle"}
    assert data["saving"] <= data["discount"]
    assert data["provisional"] is True
    total_report = client.call(routes.COST_REPORT())
    assert [item["job"] for item in total_report["jobs"]] == ["gpt"]
    assert total_report["total_usd"] == data["total_usd"]


def test_adjacent_periods_add_up(rig: Rig, client: Client) -> None:
    story(rig)
    cut, report = rig.ago(2755), routes.COST_REPORT()
    parts = [client.call(report, query={name: cut}) for name in ("until_us", "since_us")]
    total_report = client.call(report)
    assert sum(part["compute_usd"] for part in parts) == pytest.approx(total_report["compute_usd"])
    assert all(part["compute_usd"] > 1 for part in parts)
    assert client.call(report, query={"until_us": rig.ago(9000)})["jobs"] == []


def test_hedge_loser_is_named(rig: Rig, client: Client) -> None:
    job_id = rig.submit(ago_s=4000)
    node = rig.launch(job_id, SPOT, ago_s=3600)
    rig.leave(node, 1800, LeaveReason.HEDGE_LOST, "another was chosen")
    data = client.call(routes.JOB_COST_REPORT(job=job_id))
    assert data["hedge_losers"]["machines"] == 1
    assert data["hedge_losers"]["usd"] == data["compute_usd"] > 0
    assert [item["use"] for item in data["hours"]] == ["startup"]
    assert "no steps of gpt are on record" in data["unknown"][0]


def test_storage_egress_and_control_box_are_line_items(rig: Rig, client: Client) -> None:
    rig.checkpoint_store = "s3://runs/team"
    rig.places = {"s3://runs": ("aws", "eu-west-1")}
    job_id = story(rig)
    data = client.call(routes.JOB_COST_REPORT(job=job_id))
    assert data["storage_usd"] > 0
    assert data["control_usd"] == 0
    assert any("control_box_usd_per_hour is not set" in text for text in data["unknown"])
    # Between two regions of a cloud no price is known; a machine of the local cloud pays none.
    assert any("checkpoints from aws/us-east-1 to s3://runs" in t for t in data["unknown"])
    assert data["egress_usd"] == 0


def test_egress_is_a_line_item(rig: Rig, client: Client) -> None:
    rig.checkpoint_store = "gs://runs/team"
    job_id = story(rig)
    data = client.call(routes.JOB_COST_REPORT(job=job_id))
    item = next(item for item in data["items"] if item["kind"] == "egress")
    assert item["quantity"] == pytest.approx(3 * (1 << 30) / 1e9)
    assert item["cost_usd"] == pytest.approx(item["quantity"] * 0.09)


def test_control_box_is_shared_by_machine_hours(rig: Rig, client: Client) -> None:
    rig.box_microusd_per_h = 3_600_000
    for name, offer, until in (("a", SPOT, 1800), ("b", OFFERS[2], 2700)):
        node = rig.launch(rig.submit(name, ago_s=4000), offer, ago_s=3600)
        rig.leave(node, until, LeaveReason.FAILED, "crash")
    data = client.call(routes.COST_REPORT())
    shares = {job["job"]: job["control_usd"] for job in data["jobs"]}
    assert shares["a"] == pytest.approx(2 * shares["b"], rel=1e-3)
    assert data["control_usd"] == pytest.approx(3.6, rel=1e-3), "an hour since the first machine"
    assert data["control_usd"] == pytest.approx(sum(shares.values()))


def test_when_us() -> None:
    assert when_us("", "--since") == ""
    assert when_us("2026-11-01", "--since") == 1_793_491_200_000_000
    assert isinstance(when_us("30d", "--since"), int)
    for odd in ("2026-13-01", "soon"):
        with pytest.raises(UserError, match="--since"):
            when_us(odd, "--since")


def test_file_option_excludes_the_others(
    spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spotctl(None, "cost", "report", "gpt", "--file", str(CASE)) == 2
    assert "--file reports that file alone" in capsys.readouterr().err


def test_job_may_be_named_like_a_sub_command(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.submit("report")
    assert spotctl(rig, "cost", "show", "report", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["job"] == "report"


def test_an_export_has_every_row_of_the_ledger(
    rig: Rig, client: Client, spotctl: Spotctl, tmp_path: Path
) -> None:
    rig.checkpoint_store, rig.box_microusd_per_h = "s3://runs/team", 170_000
    story(rig)
    file = tmp_path / "out.csv"
    assert spotctl(rig, "cost", "export", "--focus", str(file)) == 0
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    total = sum(Decimal(row["BilledCost"]) for row in rows)
    assert float(total) == pytest.approx(client.call(routes.COST_REPORT())["total_usd"], abs=1e-5)
    assert {row["ServiceCategory"] for row in rows} == {"Compute", "Storage"}
    assert next(row["x_Interrupted"] for row in rows) == "true"
    metadata = json.loads((tmp_path / "out.csv.metadata.json").read_text())
    assert metadata["Schema"]["FocusVersion"] == "1.2"


def test_export_into_an_unwritable_file_is_an_error(
    rig: Rig, spotctl: Spotctl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spotctl(rig, "cost", "export", "--focus", str(tmp_path)) == 2
    assert spotctl(rig, "cost", "export", "--focus", str(tmp_path / "none" / "x.csv")) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_future_time_counts_as_now(client: Client) -> None:
    data = client.call(routes.FOCUS_COSTS(), query={"since_us": 1 << 62})
    assert data["items"] == []
    assert data["since"] == data["until"] == data["now"]


def test_deleted_checkpoints_cost_nothing_more(rig: Rig, client: Client) -> None:
    """3 GiB for 3,000 s, then 5 GiB for 1,000 s."""
    rig.checkpoint_store = "s3://runs/team"
    text = JOB_FILE.replace("every_steps: 100", "every_steps: 100, keep: 1")
    node = rig.launch(rig.submit(text=text, ago_s=6000), SPOT, ago_s=5900)
    rig.train(node, ago_s=5000, until_s=4000, first=0, last=10)
    rig.say(node, 1000, "checkpoint", step=20, manifest="m20", bytes=5 << 30)
    data = client.call(routes.JOB_COST_REPORT(job="gpt"))
    item = next(item for item in data["items"] if item["kind"] == "storage")
    assert item["quantity"] == pytest.approx((3 * 3000 + 5 * 1000) / (730 * 3600), abs=1e-6)


@pytest.mark.req("CST-12")
def test_totals_by_project(
    rig: Rig, client: Client, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    text = JOB_FILE.replace("spotd:\n", "spotd:\n  project: llm\n")
    for name, file, until in (("a", text, 1800), ("b", JOB_FILE, 2700), ("c", text, 2700)):
        node = rig.launch(rig.submit(name, ago_s=4000, text=file), SPOT, ago_s=3600)
        rig.leave(node, until, LeaveReason.FAILED, "crash")
    data = client.call(routes.COST_REPORT())
    sums = {row["project"]: row["total_usd"] for row in data["projects"]}
    assert list(sums) == ["llm", ""]
    assert sums["llm"] == pytest.approx(3 * sums[""])
    assert sum(sums.values()) == pytest.approx(data["total_usd"])
    assert data["users"] == [{"user": "ada", "total_usd": data["total_usd"]}]
    assert spotctl(rig, "cost", "report") == 0
    assert "\nPROJECT  " in capsys.readouterr().out
    rows = client.call(routes.FOCUS_COSTS())
    tags = [json.loads(row[rows["columns"].index("Tags")]).get("project") for row in rows["items"]]
    assert sorted(map(str, tags)) == ["None", "llm", "llm"]


@pytest.mark.req("CST-10", "CST-12")
def test_every_grouping_has_the_same_total(
    rig: Rig, client: Client, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three days with a control box, and a job whose checkpoints outlive its machine."""
    rig.box_microusd_per_h, rig.checkpoint_store = 3_333_333, "s3://runs/team"
    for name, ago_s in (("a", 200_000), ("b", 90_000)):
        node = rig.launch(rig.submit(name, ago_s=ago_s), SPOT, ago_s=ago_s)
        rig.train(node, ago_s=ago_s - 60, until_s=ago_s - 3600, first=0, last=10)
        rig.leave(node, ago_s - 4001, LeaveReason.FAILED, "crash")
    data = client.call(routes.COST_REPORT(), query={"by": "day"})
    for by in ("users", "projects", "providers", "days", "jobs"):
        assert sum(round(row["total_usd"] * 1e6) for row in data[by]) == round(
            data["total_usd"] * 1e6
        ), by
    assert {row["provider"] for row in data["providers"]} == {"aws", "control box"}
    assert [row["day"] for row in data["days"]] == sorted(row["day"] for row in data["days"])
    assert len(data["days"]) >= 3, "on each the box and what is stored cost something"
    rows = client.call(routes.FOCUS_COSTS())
    billed = rows["columns"].index("BilledCost")
    assert sum(Decimal(row[billed]) for row in rows["items"]) == Decimal(str(data["total_usd"]))
    for by in ("job", "user", "project", "provider", "day"):
        assert spotctl(rig, "cost", "report", "--by", by) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[2].split() == [by.upper(), "COST"]
        amounts = [float(line.split()[-1].lstrip("$").replace(",", "")) for line in lines[3:]]
        assert sum(amounts[:-1]) == pytest.approx(amounts[-1], abs=0.005 * len(amounts))
    assert spotctl(rig, "cost", "report", "a", "--by", "day") == 2
    assert "--by reports the totals of all jobs" in capsys.readouterr().err


def test_report_by_day_covers_a_limited_number_of_days(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.launch(rig.submit(ago_s=200 * 86_400), SPOT, ago_s=200 * 86_400)
    assert spotctl(rig, "cost", "report", "--by", "day") == 2
    assert "at most 100 days" in capsys.readouterr().err
    assert spotctl(rig, "cost", "report", "--by", "day", "--since", "30d") == 0


@pytest.mark.req("CST-11", "CST-17", "CST-19")
def test_savings_by_cause_and_protected_work(
    rig: Rig, client: Client, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each cause has its baseline, the causes add up, and unmeasured causes claim nothing.

    1,190 steps were saved when the machine was preempted.
    """
    job_id = story(rig)
    data = client.call(routes.JOB_COST_REPORT(job=job_id))
    savings = data["savings"]
    parts = {part["name"]: part["usd"] for part in savings["parts"]}
    needed = next(part for part in data["on_demand"] if part["basis"] == "needed hours")
    assert savings["total_usd"] == pytest.approx(needed["total_usd"] - data["total_usd"])
    assert sum(usd for usd in parts.values() if usd) == pytest.approx(savings["total_usd"])
    assert parts["price"] > savings["total_usd"] > 0 > parts["hours on top"]
    assert (parts["autoscaling"], parts["right-sizing"]) == (None, None)
    assert all(part["against"] for part in savings["parts"])
    assert savings["fraction"] == data["saving"] <= data["discount"]
    assert savings["more_runs"] == pytest.approx(savings["total_usd"] / data["total_usd"], abs=1e-4)
    protected = data["protected"]
    useful = next(part["cost_usd"] for part in data["hours"] if part["use"] == "useful")
    assert protected["interruptions"] == 1
    assert 15 < protected["usd"] < useful
    assert protected["replayed_usd"] == 0
    assert spotctl(rig, "cost", "report", "gpt", "--outlay", "400") == 0
    out = capsys.readouterr().out
    assert "of work in 1 interruption; $0.00 was trained again" in out
    runs = round(400 / savings["total_usd"], 2)
    assert f"$400.00 is earned back after {runs:.2f} such runs" in out
    assert f"{savings['more_runs']:.2f} for the $" in out
    total_savings = client.call(routes.COST_REPORT())["savings"]
    assert total_savings["total_usd"] == savings["total_usd"]


@pytest.mark.req("CST-16", "CST-17")
def test_outlay_of_the_case_study_needs_several_runs(
    spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two to three days at $200 an hour are $3,200 to $4,800; the run saved $1,175 against the same
    hours, less against those that were needed. By the claimed $30,300 one run would have been
    enough."""
    for outlay in (3200, 4800):
        arguments = ["cost", "report", "--file", str(CASE), "--outlay", str(outlay), "-o", "json"]
        assert spotctl(None, *arguments) == 0
        data = json.loads(capsys.readouterr().out)
        assert data["outlay"]["runs"] == pytest.approx(
            outlay / data["savings"]["total_usd"], abs=0.01
        )
        assert data["outlay"]["runs"] > outlay / 1175.04 > 2.7
        assert data["savings"]["more_runs"] < 1175.04 / 3894.96 < 0.31, "no second run a month"
    assert 4800 < 41_500 - 11_200


def test_outlay_is_never_earned_back_without_savings(
    rig: Rig, spotctl: Spotctl, capsys: pytest.CaptureFixture[str]
) -> None:
    dear = OFFERS[1]
    node = rig.launch(rig.submit(ago_s=4000), dear, ago_s=3600)
    rig.leave(node, 1800, LeaveReason.FAILED, "crash")
    assert spotctl(rig, "cost", "report", "--outlay", "400") == 0
    assert "never: nothing was saved" in capsys.readouterr().out
