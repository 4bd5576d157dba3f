"""`spotctl shadow`, word for word, and its refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fuzz.targets import __file__ as targets
from tests.spotd.cli.conftest import Spotctl

CORPUS = Path(targets).parent / "corpus" / "history"

TOLD = """\
JOB   WHEN (UTC)        ENDED      GAP     MINUTES        STEPS     DOLLARS  NOT KNOWN
bert  2026-11-01 02:00  lost        1m   -4.4 to ?            ?           ?  which steps were done…
gpt   2026-11-01 01:00  preempted   8m  3.3 to 5.7  80.5 to 150  0.9 to 1.7  -

2 jobs, 7.8 h, 2 interruptions
spotd's own saves: -12.3 to -7.9 minutes, ? dollars
spotd would have saved -13.4 to ? minutes, ? steps, ? dollars (below 0: lost; ?: not known)
"""


def test_a_history(spotctl: Spotctl, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(CORPUS / "own.csv")
    assert spotctl(None, "shadow", "--log", file, "--checkpoint-gb", "10") == 0
    told = capsys.readouterr()
    assert told.out == TOLD
    assumed = told.err.splitlines()
    assert len(assumed) == 7
    assert all(line.startswith("assumed: ") for line in assumed)
    assert "each 139 s, and a death costs at most that (the longest pause of the sim" in assumed[0]


def test_json_says_the_same(spotctl: Spotctl, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(CORPUS / "sky.json")
    line = ("shadow", "--log", file, "--usd-per-hour", "8", "--every", "90s", "-o", "json")
    assert spotctl(None, *line) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["kind"] == "Shadow"
    assert [one["job"] for one in data["items"]] == ["3", "4"]
    assert data["saved"]["minutes"]["low"] is None, "what saves take is not known"
    assert data["saved"]["minutes"]["high"] is None, "nor what was done again"
    assert data["items"][0]["minutes"]["low"] == pytest.approx(-(123.8 + 90) / 60)
    assert data["every_s"] == 90


def test_no_such_file(spotctl: Spotctl, capsys: pytest.CaptureFixture[str]) -> None:
    assert spotctl(None, "shadow", "--log", "/nowhere") == 2
    assert "/nowhere cannot be read: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no machines of any job"),
        ("job,start\ngpt,soon\n", "is no history: row 1: start is no time: 'soon'"),
        ('{"job": "a"}', "is no history: row 1: start is missing"),
        ("job,start\ngpt,\udcff\n", "is no history: "),
    ],
)
def test_one_error_that_names_the_field(
    spotctl: Spotctl, capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "log"
    file.write_bytes(text.encode(errors="surrogateescape"))
    assert spotctl(None, "shadow", "--log", str(file)) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "try: docs/advice.md" in error


def test_a_job_that_cannot_be_counted_is_named(
    spotctl: Spotctl, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "queue.json"
    file.write_text(json.dumps([{"job_id": 9, "recovery_count": 7}]))
    assert spotctl(None, "shadow", "--log", str(file)) == 0
    out = capsys.readouterr().out
    assert "not counted: job 9: of its 7 recoveries the queue has no times" in out
    assert "0 jobs, 0.0 h, 0 interruptions" in out
