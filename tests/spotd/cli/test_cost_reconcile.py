"""`spotctl cost reconcile` through the real API: what a bill changes, and what it reports."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from spotd.api_client.client import Client
from spotd.api_routes import routes
from spotd.base.errors import UserError
from spotd.domain.states import LeaveReason
from tests.spotd.api.rig import SPOT, Rig
from tests.spotd.cli.conftest import Spotctl

HEAD = (
    "lineItem/UsageStartDate,lineItem/UsageEndDate,lineItem/ResourceId,"
    "lineItem/UnblendedCost,product/instanceType"
)


@pytest.fixture
def client(rig: Rig) -> Client:
    return Client(rig.socket)


def paid(rig: Rig) -> str:
    """Submit a job whose machine ran for an hour at $19.93 and is gone."""
    job_id = rig.submit(ago_s=8000)
    node = rig.launch(job_id, SPOT, ago_s=7200)
    rig.leave(node, 3600, LeaveReason.DONE, "finished")
    return job_id


def bill(folder: Path, *rows: str) -> Path:
    """Over all of time that matters."""
    span = "2020-01-01T00:00:00Z,2100-01-01T00:00:00Z"
    file = folder / "bill.csv"
    file.write_text("\n".join([HEAD, *(f"{span},{row}" for row in rows)]) + "\n")
    return file


def test_matching_bill_makes_amounts_final(
    rig: Rig,
    client: Client,
    spotctl: Spotctl,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job_id = paid(rig)
    report = routes.JOB_COST_REPORT(job=job_id)
    before = client.call(report)
    assert before["provisional"]
    file = bill(tmp_path, "i-10,19.95,p5.48xlarge", "i-web,2,m7i.large")
    assert spotctl(rig, "cost", "reconcile", "--aws-cur", str(file), "--dry-run") == 0
    assert client.call(report)["provisional"], "nothing was marked"
    assert spotctl(rig, "cost", "reconcile", "--aws-cur", str(file)) == 0
    captured = capsys.readouterr()
    assert "i-10" in captured.out
    assert "unexplained: $0.0200, 0.1 %" in captured.out
    assert "not spotd's: $2.00" in captured.out
    assert captured.err.endswith("1 segments are reconciled\n")
    after = client.call(report)
    assert (after["total_usd"], after["invoiced_usd"]) == (19.95, 19.95)
    assert not after["provisional"]
    assert rig.store.events.keys("unexplained", 0) == set()
    spotctl(rig, "cost", "report", "gpt")
    assert "$19.95, reconciled" in capsys.readouterr().out


def test_unknown_gpu_spend_raises_an_alert(
    rig: Rig, spotctl: Spotctl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paid(rig)
    file = bill(tmp_path, "i-10,19.93,p5.48xlarge", "i-stray,55.04,p5.48xlarge")
    packed = tmp_path / "bill.csv.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    assert spotctl(rig, "cost", "reconcile", "--aws-cur", str(packed), "-o", "json") == 0
    data = json.loads(capsys.readouterr().out)
    assert [entry["machine"] for entry in data["unknown"]] == ["i-stray"]
    assert data["alerts"] is True
    rows = [row for row in rig.store.events.rows(None) if row.event.kind == "unexplained"]
    assert len(rows) == 1
    assert rows[0].event.alert
    assert rig.store.events.keys("unexplained", 0) == {rows[0].event.key}
    assert "1 with GPUs that the ledger does not know (i-stray)" in rows[0].event.text
    assert "$55.04 (73.4 %)" in rows[0].event.text


def test_credits_neither_hide_spend_nor_count_as_saving(
    rig: Rig,
    client: Client,
    spotctl: Spotctl,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Credits bring the bill to zero, and an unknown machine is still unexplained.

    The job costs what it cost before.
    """
    job_id = paid(rig)
    before = client.call(routes.JOB_COST_REPORT(job=job_id))
    span = "2020-01-01T00:00:00Z,2100-01-01T00:00:00Z"
    rows = [
        f"Usage,{span},i-10,19.93,p5.48xlarge",
        f"Credit,{span},i-10,-19.93,p5.48xlarge",
        f"Usage,{span},i-stray,55.04,p5.48xlarge",
        f"Credit,{span},i-stray,-55.04,p5.48xlarge",
        f"Credit,{span},,-5,",
    ]
    file = tmp_path / "bill.csv"
    file.write_text("\n".join([f"lineItem/LineItemType,{HEAD}", *rows]) + "\n")
    assert spotctl(rig, "cost", "reconcile", "--aws-cur", str(file)) == 0
    out = capsys.readouterr().out
    assert "$74.97 billed" in out
    assert "unexplained: $55.04, 73.4 % (an alert)" in out
    assert "credits and refunds: -$79.97; not in the amounts above, and no saving" in out
    after = client.call(routes.JOB_COST_REPORT(job=job_id))
    assert (after["total_usd"], after["invoiced_usd"]) == (19.93, 19.93)
    assert (after["saving"], after["discount"]) == (before["saving"], before["discount"])


def test_bill_of_another_cloud_leaves_these_machines_alone(
    rig: Rig, client: Client, spotctl: Spotctl
) -> None:
    paid(rig)
    row = ["i-10", "gpu", True, 1_000_000, 0, rig.clock.now_us(), 0]
    data = client.call(routes.RECONCILE_BILL(), {"cloud": "gcp", "entries": [row]})
    assert (data["matched"], len(data["unknown"]), data["missing"]) == ([], 1, [])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"cloud": "oracle", "entries": []}, "'oracle' has no supported bill format"),
        ({"cloud": "aws"}, "entries must be a list"),
        ({"cloud": "aws", "entries": [["i", "p", True, 1.5, 0, 0, 0]]}, "entries must be a list"),
        ({"cloud": "aws", "entries": [["i", "p", True, 1, 5, 2, 0]]}, "entries must be a list"),
        (
            {"cloud": "aws", "entries": [["i", "p", True, 1, 5, 1 << 60, 0]]},
            "entries must be a list",
        ),
        ({"cloud": "aws", "entries": [["i", "p", True, 1, 1, 2]]}, "entries must be a list"),
        ({"cloud": "aws", "entries": [], "credits_microusd": 0.5}, "credits_microusd must be"),
        (
            {"cloud": "aws", "entries": [["i\ud800", "p", True, 1, 1, 2, 0]]},
            "entries must be a list",
        ),
    ],
)
def test_invalid_request_is_refused(client: Client, body: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        client.call(routes.RECONCILE_BILL(), body)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.parquet", b"PAR1", "Parquet, which is not read"),
        ("x.csv", b"\xff\xfe\x00", "is not a bill of aws"),
        ("x.csv", b"a,b\n1,2\n", "no column like lineitemresourceid"),
        ("x.csv", b"", "has no machines of aws"),
        ("x.gz", b"\x1f\x8b\x00\x00", "cannot be read|is not a bill"),
    ],
)
def test_invalid_bill_file_is_refused(
    spotctl: Spotctl, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    name: str, content: bytes, message: str,
) -> None:  # fmt: skip
    file = tmp_path / name
    file.write_bytes(content)
    assert spotctl(None, "cost", "reconcile", "--aws-cur", str(file)) == 2
    error = capsys.readouterr().err
    assert any(text in error for text in message.split("|")), error


def test_only_one_bill_is_accepted(spotctl: Spotctl, capsys: pytest.CaptureFixture[str]) -> None:
    assert spotctl(None, "cost", "reconcile") == 2
    assert spotctl(None, "cost", "reconcile", "--gcp", "a", "--azure", "b") == 2
    assert spotctl(None, "cost", "reconcile", "--gcp", "/none.csv") == 2
    assert capsys.readouterr().err.count("name one bill") == 2
