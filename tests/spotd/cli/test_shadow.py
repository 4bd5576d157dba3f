"""`spotctl shadow`: its exact output, and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fuzz.targets import __file__ as targets
from tests.spotd.cli.conftest import Spotctl

CORPUS = Path(targets).parent / "corpus" / "history"

OUTPUT = """\
JOB   WHEN               ENDED      GAP     MINUTES        STEPS     DOLLARS  NOT KNOWN
bert  2026-11-01 02:00Z  lost        1m   -4.4 to ?            ?           ?  which steps were \
done again is not in the log; the request for the next machine is not in the log; no price
gpt   2026-11-01 01:00Z  preempted   8m  3.3 to 5.7  80.5 to 150  0.9 to 1.7  -

2 jobs, 7.8 h, 2 interruptions
spotd's own saves: -12.3 to -7.9 minutes, ? dollars
spotd would have saved -13.4 to ? minutes, ? steps, ? dollars (below 0: lost; ?: not known)
"""


def test_history_output(spotctl: Spotctl, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(CORPUS / "own.csv")
    options = ("--checkpoint-gb", "10", "-o", "wide")
    assert spotctl(None, "--utc", "shadow", "--log", file, *options) == 0
    captured = capsys.readouterr()
    assert captured.out == OUTPUT
    assumed = captured.err.splitlines()
    assert len(assumed) == 7
    assert all(line.startswith("assumed: ") for line in assumed)
    assert "each 139 s, and a death costs at most that (the longest pause of the sim" in assumed[0]


def test_json_has_the_same_figures(spotctl: Spotctl, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(CORPUS / "sky.json")
    line = ("shadow", "--log", file, "--usd-per-hour", "8", "--every", "90s", "-o", "json")
    assert spotctl(None, *line) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["kind"] == "Shadow"
    assert [row["job"] for row in data["items"]] == ["3", "4"]
    assert data["saved"]["minutes"]["low"] is None, "what saves take is not known"
    assert data["saved"]["minutes"]["high"] is None, "nor what was done again"
    assert data["items"][0]["minutes"]["low"] == pytest.approx(-(123.8 + 90) / 60)
    assert data["every_s"] == 90


def test_missing_file_is_an_error(spotctl: Spotctl, capsys: pytest.CaptureFixture[str]) -> None:
    assert spotctl(None, "shadow", "--log", "/nowhere") == 2
    assert "/nowhere cannot be read: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no machines of any job"),
        ("job,start\ngpt,soon\n", "is not a history: row 1: start is not a time: 'soon'"),
        ('{"job": "a"}', "is not a history: row 1: start is missing"),
        ("job,start\ngpt,\udcff\n", "is not a history: "),
    ],
)
def test_invalid_log_is_one_error_naming_the_field(
    spotctl: Spotctl, capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "log"
    file.write_bytes(text.encode(errors="surrogateescape"))
    assert spotctl(None, "shadow", "--log", str(file)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "try: docs/advice.md" in error


def test_uncounted_jobs_are_named(
    spotctl: Spotctl, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "queue.json"
    file.write_text(json.dumps([{"job_id": 9, "recovery_count": 7}]))
    assert spotctl(None, "shadow", "--log", str(file)) == 0
    out = capsys.readouterr().out
    assert "not counted: job 9: of its 7 recoveries the queue has no times" in out
    assert "0 jobs, 0.0 h, 0 interruptions" in out
