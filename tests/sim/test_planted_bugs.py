"""The table of planted bugs: a bug that is not found fails."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.sim.oracles import Violation
from tests.sim.planted_bugs import BUGS, report
from tests.sim.planted_bugs.bug import Bug
from tests.sim.run import Case, Result


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


def test_the_known_seed_is_played_first_and_the_others_where_it_finds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def play(case: Case, _: object) -> Result:
        return Result(case, Violation("L1", 0.0, "seen") if case.seed == 2 else None)

    monkeypatch.setattr(report, "run", play)
    bug = Bug("none", "", frozenset({"L1"}), _no_bug, within=4)
    hunts = [report.hunt(bug, known) for known in (2, 0, 3, 9, None)]
    assert [(found.seed, found.played) for found in hunts] == [
        (2, 1),
        (2, 3),
        (2, 4),
        (2, 3),
        (2, 3),
    ]
