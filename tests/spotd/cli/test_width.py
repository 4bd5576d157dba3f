"""No table is wider than the terminal: columns go by importance, and no word is broken."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spotd.api.rig import Rig
from tests.spotd.cli.conftest import Spotctl
from tests.spotd.cli.fleet import FAR, NAME, long_named

Captured = pytest.CaptureFixture[str]

USE = Path("examples/use.csv").absolute()
HISTORY = Path("tests/fuzz/corpus/history/own.csv").absolute()


@pytest.fixture(scope="module")
def fleet() -> Iterator[Rig]:
    rig = long_named()
    yield rig
    rig.close()


# Every command that prints a table, and the headings that stay on every terminal.
TABLES = {
    "ps --all": ["NAME", "PHASE", "WHERE", "COST"],
    f"show {NAME}": ["WHERE", "STATE", "$/H"],
    "nodes": ["JOB", "WHERE", "STATE", "$/H"],
    f"nodes {NAME}": ["JOB", "WHERE", "STATE", "$/H"],
    "cost": ["JOB", "COST"],
    f"cost {NAME}": ["WHERE", "COST"],
    "cost report": [],
    "cost report --by job": ["JOB", "COST"],
    "offers": ["WHERE", "$/H"],
    "stats": [],
    "stats --by zone": [],
    "stats --claims": [],
    "price claims": [],
    "price history --capacity spot --since 24h": [],
    "price machines": [],
    "providers": ["CLOUD"],
    "orphans": ["ID", "WHERE", "$/H"],
    "image ls": ["NAME"],
    "user ls": ["NAME", "STATE"],
    "user tokens": [],
    "secret ls": [],
    "drill ls": [],
    "audit": ["AT", "USER", "ACTION", "OUTCOME"],
    "events": [],
    "budget": [],
    "doctor": [],
    f"ckpt ls {NAME}": [],
    "plan FOLDER/job.yaml": ["WHERE", "$/H"],
    "advisor job FOLDER/job.yaml": [],
    "rightsize --model llama-3-70b --method lora --tokens 1B": ["GPU", "GPUS", "VERDICT"],
    f"advisor commitments --use {USE} --discount 40 --on-demand-usd-per-hour 55": [],
    f"shadow --log {HISTORY}": ["JOB", "DOLLARS"],
}


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("line", list(TABLES))
def test_a_table_fits(
    fleet: Rig,
    spotctl: Spotctl,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
    line: str,
    columns: int,
) -> None:
    """Each word is whole: it is among those of `-o wide`."""
    arguments = shlex.split(line.replace("FOLDER", str(fleet.folder)))
    monkeypatch.setenv("COLUMNS", str(columns))
    code = spotctl(fleet, *arguments)
    narrow = capsys.readouterr()
    assert spotctl(fleet, *arguments, "-o", "wide") == code
    wide = capsys.readouterr()
    beyond = [text for text in narrow.out.splitlines() if len(text) > columns]
    assert beyond == []
    assert "…" not in narrow.out
    assert {*narrow.out.split()} - {*wide.out.split()} <= ages(narrow.out)
    assert {*TABLES[line]} <= {*narrow.out.split()}
    assert "left out" not in wide.err


def ages(text: str) -> set[str]:
    """Return the words that end in a second, which passes between two calls."""
    return {word for word in text.split() if word[:-1].isdigit() and word.endswith("s")}


@pytest.mark.parametrize("columns", [80, 120])
def test_place_is_whole_and_local_goes_first(
    fleet: Rig,
    spotctl: Spotctl,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
    columns: int,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for line in ("ps", "nodes", f"show {NAME}"):
        assert spotctl(fleet, *line.split()) == 0
        assert f"{FAR.cloud}/{FAR.zone}" in capsys.readouterr().out
    assert spotctl(fleet, "ps", "-o", "wide") == 0
    assert f"{FAR.cloud}/{FAR.zone} (local)" in capsys.readouterr().out


def test_columns_left_out_are_counted_and_shown_by_wide(
    fleet: Rig, spotctl: Spotctl, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert spotctl(fleet, "ps") == 0
    narrow = capsys.readouterr()
    assert spotctl(fleet, "ps", "-o", "wide") == 0
    wide = capsys.readouterr()
    all_titles = wide.out.splitlines()[0].split()
    assert {"DONE", "ETA", "GEN", "REC"} <= {*all_titles}
    shown = [title for title in all_titles if title in narrow.out.split()]
    count = len(all_titles) - len(shown)
    assert narrow.err.splitlines() == [f"{count} columns left out; -o wide shows all"]
    assert wide.err == ""


def test_a_pipe_has_every_column(
    fleet: Rig, spotctl: Spotctl, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS")
    assert spotctl(fleet, "ps") == 0
    piped = capsys.readouterr()
    assert spotctl(fleet, "ps", "-o", "wide") == 0
    assert piped.out == capsys.readouterr().out
    assert piped.err == ""
