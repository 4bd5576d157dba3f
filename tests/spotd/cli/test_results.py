"""`spotctl results import`, `show` and `cost compare`, through the real API."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from spotd.api_client.wording import result_text
from spotd.api_routes import routes
from spotd.base.errors import UserError
from spotd.cli.result_file import read_results
from spotd.domain.evaluation import Evaluation
from tests.spotd.api.rig import JOB_FILE, Rig, story
from tests.spotd.cli.conftest import Spotctl

Captured = pytest.CaptureFixture[str]
CASES = 15_000


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    """15,000 cases of which each twentieth fails, with 20 tokens in 0.02 s each.

    The first token comes after 0.2 s, in each tenth case after 0.4 s.
    """
    path = tmp_path / "helpdesk.csv"
    lines = ["case,passed,tokens,seconds,ttft_s"]
    for n in range(CASES):
        verdict = "fail" if n % 20 == 0 else "pass"
        lines.append(f"case-{n},{verdict},20,0.02,{0.4 if n % 10 == 0 else 0.2}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.req("HYB-08")
def test_import_is_idempotent(rig: Rig, spotctl: Spotctl, capsys: Captured, cases: Path) -> None:
    story(rig)
    for new in (True, False):
        assert spotctl(rig, "results", "import", "gpt", str(cases), "-o", "json") == 0
        data = json.loads(capsys.readouterr().out)
        assert (data["suite"], data["new"], data["job"]) == ("helpdesk", new, "gpt")
        assert (data["cases"], data["passed"], data["share"]) == (CASES, 14_250, 0.95)
        assert data["tokens_per_s"] == pytest.approx(1000.0)
        assert (data["ttft_s"], data["ttft_p95_s"]) == (0.2, 0.4)
        assert data["failed"][:2] == ["case-0", "case-20"]
    assert len(rig.store.evaluations.rows()) == 1
    assert spotctl(rig, "results", "import", "gpt", str(cases)) == 0
    assert "14,250 of 15,000 cases passed (95.00 %), 1,000.0 tokens/s" in capsys.readouterr().out
    assert spotctl(rig, "show", "gpt") == 0
    assert "helpdesk: 14,250 of 15,000 cases passed" in capsys.readouterr().out
    assert spotctl(rig, "show", "gpt", "-o", "json") == 0
    [shown] = json.loads(capsys.readouterr().out)["results"]
    assert (shown["passed"], shown["ttft_s"]) == (14_250, 0.2)


def test_validation_result_is_the_quality_of_the_training_job(
    rig: Rig, spotctl: Spotctl, capsys: Captured, cases: Path, tmp_path: Path
) -> None:
    trained = story(rig)
    rig.submit("other", text=JOB_FILE)
    rig.submit("validate", text=JOB_FILE + f"  after: {trained}\n")
    job = rig.store.jobs.find("validate")
    assert job is not None
    assert job.spec.queue.after in (trained, "gpt")
    rows = _quality(spotctl, rig, capsys)
    assert rows["actual"] is None, "nothing is known yet"
    assert spotctl(rig, "results", "import", "validate", str(cases)) == 0
    (tmp_path / "bench.json").write_text('{"tokens_per_s": 1850, "ttft_s": 0.31}')
    assert spotctl(rig, "results", "import", "validate", str(tmp_path / "bench.json")) == 0
    capsys.readouterr()
    rows = _quality(spotctl, rig, capsys)
    assert (rows["on_demand"], rows["actual"], rows["unit"]) == (None, 0.95, "share")
    assert rows["note"] == "14,250 of 15,000 cases of helpdesk passed"
    assert _quality(spotctl, rig, capsys, "other")["actual"] is None
    assert spotctl(rig, "cost", "compare", "gpt") == 0
    assert "95.00 %" in capsys.readouterr().out


def _quality(spotctl: Spotctl, rig: Rig, capsys: Captured, job: str = "gpt") -> dict[str, object]:
    assert spotctl(rig, "cost", "compare", job, "-o", "json") == 0
    rows = json.loads(capsys.readouterr().out)["comparison"]
    row: dict[str, object] = next(row for row in rows if row["name"] == "quality of the model")
    return row


@pytest.mark.parametrize(
    ("passed", "cases", "shown"),
    [
        (29_999, 30_000, "99.99 %"),
        (30_000, 30_000, "100.00 %"),
        (57, 100, "57.00 %"),
        (0, 3, "0.00"),
    ],
)
def test_full_share_means_all_cases(passed: int, cases: int, shown: str) -> None:
    measurements = {"cases": cases, "passed": passed, "tokens_per_s": None, "ttft_s": None}
    assert f"cases passed ({shown}" in result_text(measurements)


def test_newer_file_of_a_suite_replaces_the_older(
    rig: Rig, spotctl: Spotctl, capsys: Captured, tmp_path: Path
) -> None:
    story(rig)
    for passed in (1, 2):
        (tmp_path / "a.json").write_text(json.dumps({"cases": 4, "passed": passed}))
        assert spotctl(rig, "results", "import", "gpt", str(tmp_path / "a.json")) == 0
        rig.clock.go_on(1)
    capsys.readouterr()
    assert spotctl(rig, "show", "gpt", "-o", "json") == 0
    assert [row["passed"] for row in json.loads(capsys.readouterr().out)["results"]] == [2]
    assert len(rig.store.evaluations.rows()) == 2, "what was there before stays on record"


def test_result_file_forms(tmp_path: Path) -> None:
    rows = [{"case": "a", "passed": True}, {"case": "b", "passed": False, "ttft_s": None}]
    path = tmp_path / "x.json"
    path.write_text(json.dumps(rows))
    evaluation = Evaluation("x", 2, 1, failed=("b",))
    assert read_results(path) == evaluation
    assert read_results(path, "mine") == replace(evaluation, suite="mine")
    path.write_text('{"suite": "theirs", "tokens_per_s": 5}')
    assert read_results(path) == Evaluation("theirs", tokens_per_s=5.0)
    path = tmp_path / "speed.csv"
    path.write_text("\ufefftokens,seconds\n30,1\n10,3\n")
    assert read_results(path) == Evaluation("speed", tokens_per_s=10.0), "by time, not by request"


@pytest.mark.parametrize(
    ("name", "text", "messages"),
    [
        ("a.csv", "case,passed\nx,maybe\ny,?\n", ("line 2: passed: 'maybe'", "line 3: passed")),
        ("a.csv", "case,passed\nx,pass\nx,fail\n", ("line 3: case: 'x' is on line 2, too",)),
        ("a.csv", "case,passed\nx,pass\ny,\n", ("line 3: passed: it is missing",)),
        ("a.csv", "case,passed\nx,pass,5\n", ("line 2: it has not as many fields",)),
        ("a.csv", "case,ttft_ms\nx,5\n", ("ttft_ms: no such column", "in seconds")),
        ("a.csv", "case,pased\nx,5\n", ("did you mean 'passed'?",)),
        ("a.csv", "tokens\n5\n", ("seconds: it is missing",)),
        ("a.csv", "ttft_s\n1200\n", ("ttft_s: '1200' is not above 0", "250 ms are 0.25")),
        ("a.csv", "ttft_s\nnan\n", ("ttft_s: 'nan' is not",)),
        ("a.csv", "case,passed\n", ("rows: there are 0",)),
        ("a b.csv", "passed\n1\n", ("suite: 'a b' is not a name",)),
        ("a.json", "{", ("is not valid JSON",)),
        ("a.json", "5", ("neither an object nor a list",)),
        ("a.json", "[5]", ("row 1: it is not an object",)),
        ("a.json", '{"cases": 1, "passed": 2}', ("passed: 2 passed of 1 cases",)),
    ],
)
def test_all_problems_of_a_file_are_reported(
    rig: Rig, spotctl: Spotctl, capsys: Captured, tmp_path: Path,
    name: str, text: str, messages: tuple[str, ...],
) -> None:  # fmt: skip
    path = tmp_path / name
    path.write_text(text)
    assert spotctl(rig, "results", "import", "gpt", str(path)) == 2
    stderr = capsys.readouterr().err
    for message in messages:
        assert message in stderr
    assert rig.store.evaluations.rows() == []


def test_missing_and_binary_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_results(tmp_path / "none.csv")
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="is not UTF-8"):
        read_results(tmp_path / "x.csv")


def test_daemon_validates_results(rig: Rig) -> None:
    from spotd.api_client.client import Client

    story(rig)
    with pytest.raises(UserError, match="passed: 2 passed of 1 cases"):
        Client(rig.socket).call(
            routes.IMPORT_RESULTS(job="gpt"), {"suite": "a", "cases": 1, "passed": 2}
        )
