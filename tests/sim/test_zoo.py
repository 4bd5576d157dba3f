"""The zoo's table: a bug that is not found fails."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.sim.zoo import BUGS, report
from tests.sim.zoo.bug import Bug


def _no_bug(stack: ExitStack) -> None:
    """Plants nothing."""


def test_a_bug_that_is_not_found_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "BUGS", [Bug("none", "", frozenset({"L1"}), _no_bug, within=1)])
    assert report.main("text", 1) == 1
    told = capsys.readouterr().out
    assert "NOT FOUND" in told
    assert "0 of 1 found" in told


def test_the_page_has_every_bug() -> None:
    assert report.known_seeds().keys() == {bug.name for bug in BUGS}


def test_the_known_seed_is_played_first_and_the_others_where_it_finds_nothing() -> None:
    [bug] = [bug for bug in BUGS if bug.name == "all chosen"]
    seed = report.known_seeds()[bug.name]
    assert seed > 0
    hunts = [report.hunt(bug, known) for known in (seed, 0)]
    assert [(found.seed, found.played) for found in hunts] == [(seed, 1), (seed, seed + 1)]
