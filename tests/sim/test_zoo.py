"""The zoo's table: a bug that is not found fails, and docs/zoo.md has the bugs that there are."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.sim.zoo import BUGS, report
from tests.sim.zoo.bug import Bug

PAGE = Path(__file__).parents[2] / "docs" / "zoo.md"
LEAST = 20


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


def test_the_page_has_every_bug_and_each_was_found() -> None:
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines()]
    found = {row[0]: row[1:] for row in rows if len(row) == 7}
    assert len(BUGS) >= LEAST
    for bug in BUGS:
        text, profile, without, seeds, most, invariant = found.pop(bug.name)
        assert (text, profile, without.strip(), int(most)) == (
            *(bug.text, bug.profile, bug.without, bug.within),
        ), bug.name
        assert 1 <= int(seeds) <= bug.within
        assert invariant in bug.seen_as
    assert set(found) <= {"planted bug", "---"}, "bugs that are no more"
