"""`spotctl results import`, `show` and `cost compare`, through the real API."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from spotd.api_client.wording import result_text
from spotd.base.errors import UserError
from spotd.cli.result_file import read_results
from spotd.domain.evaluation import Evaluation
from tests.spotd.api.rig import JOB_FILE, Rig, story
from tests.spotd.cli.conftest import Spotctl

Captured = pytest.CaptureFixture[str]
CASES = 15_000


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    """15,000 cases of which each twentieth fails; 20 tokens in 0.02 s each, the first after 0.2 s,
    of each tenth after 0.4 s."""
    path = tmp_path / "helpdesk.csv"
    lines = ["case,passed,tokens,seconds,ttft_s"]
    for n in range(CASES):
        verdict = "fail" if n % 20 == 0 else "pass"
        lines.append(f"case-{n},{verdict},20,0.02,{0.4 if n % 10 == 0 else 0.2}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.req("HYB-08")
def test_fifteen_thousand_cases_twice(
    rig: Rig, spotctl: Spotctl, capsys: Captured, cases: Path
) -> None:
    story(rig)
    for new in (True, False):
        assert spotctl(rig, "results", "import", "gpt", str(cases), "-o", "json") == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["suite"], told["new"], told["job"]) == ("helpdesk", new, "gpt")
        assert (told["cases"], told["passed"], told["share"]) == (CASES, 14_250, 0.95)
        assert told["tokens_per_s"] == pytest.approx(1000.0)
        assert (told["ttft_s"], told["ttft_p95_s"]) == (0.2, 0.4)
        assert told["failed"][:2] == ["case-0", "case-20"]
    assert len(rig.store.evaluations()) == 1
    assert spotctl(rig, "results", "import", "gpt", str(cases)) == 0
    assert "14,250 of 15,000 cases passed (95.00 %), 1,000.0 tokens/s" in capsys.readouterr().out
    assert spotctl(rig, "show", "gpt") == 0
    assert "helpdesk: 14,250 of 15,000 cases passed" in capsys.readouterr().out
    assert spotctl(rig, "show", "gpt", "-o", "json") == 0
    [shown] = json.loads(capsys.readouterr().out)["results"]
    assert (shown["passed"], shown["ttft_s"]) == (14_250, 0.2)


def test_what_validation_says_is_the_quality_of_what_was_trained(
    rig: Rig, spotctl: Spotctl, capsys: Captured, cases: Path, tmp_path: Path
) -> None:
    trained = story(rig)
    rig.submit("other", text=JOB_FILE)
    rig.submit("validate", text=JOB_FILE + f"  after: {trained}\n")
    job = rig.store.find_job("validate")
    assert job is not None
    assert job.spec.after in (trained, "gpt")
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
    found: dict[str, object] = next(row for row in rows if row["name"] == "quality of the model")
    return found


@pytest.mark.parametrize(
    ("passed", "cases", "shown"),
    [
        (29_999, 30_000, "99.99 %"),
        (30_000, 30_000, "100.00 %"),
        (57, 100, "57.00 %"),
        (0, 3, "0.00"),
    ],
)
def test_all_passed_is_said_of_all_alone(passed: int, cases: int, shown: str) -> None:
    told = {"cases": cases, "passed": passed, "tokens_per_s": None, "ttft_s": None}
    assert f"cases passed ({shown}" in result_text(told)


def test_another_file_of_a_suite_is_shown_in_its_place(
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
    assert len(rig.store.evaluations()) == 2, "what was there before stays on record"


def test_the_forms_of_a_file(tmp_path: Path) -> None:
    rows = [{"case": "a", "passed": True}, {"case": "b", "passed": False, "ttft_s": None}]
    path = tmp_path / "x.json"
    path.write_text(json.dumps(rows))
    found = Evaluation("x", 2, 1, failed=("b",))
    assert read_results(path) == found
    assert read_results(path, "mine") == replace(found, suite="mine")
    path.write_text('{"suite": "theirs", "tokens_per_s": 5}')
    assert read_results(path) == Evaluation("theirs", tokens_per_s=5.0)
    path = tmp_path / "speed.csv"
    path.write_text("\ufefftokens,seconds\n30,1\n10,3\n")
    assert read_results(path) == Evaluation("speed", tokens_per_s=10.0), "by time, not by request"


@pytest.mark.parametrize(
    ("name", "text", "words"),
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
        ("a b.csv", "passed\n1\n", ("suite: 'a b' is no name",)),
        ("a.json", "{", ("is no JSON",)),
        ("a.json", "5", ("neither an object nor a list",)),
        ("a.json", "[5]", ("row 1: it is no object",)),
        ("a.json", '{"cases": 1, "passed": 2}', ("passed: 2 passed of 1 cases",)),
    ],
)
def test_what_is_wrong_with_a_file_is_said_at_once(
    rig: Rig, spotctl: Spotctl, capsys: Captured, tmp_path: Path,
    name: str, text: str, words: tuple[str, ...],
) -> None:  # fmt: skip
    path = tmp_path / name
    path.write_text(text)
    assert spotctl(rig, "results", "import", "gpt", str(path)) == 2
    told = capsys.readouterr().err
    for word in words:
        assert word in told
    assert rig.store.evaluations() == []


def test_a_file_that_is_not_there_and_one_that_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_results(tmp_path / "none.csv")
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="is no UTF-8"):
        read_results(tmp_path / "x.csv")


def test_the_daemon_looks_for_itself(rig: Rig) -> None:
    from spotd.api_client.client import Client

    story(rig)
    with pytest.raises(UserError, match="passed: 2 passed of 1 cases"):
        Client(rig.socket).post("/v1/jobs/gpt/results", {"suite": "a", "cases": 1, "passed": 2})
