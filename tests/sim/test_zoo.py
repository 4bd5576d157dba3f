"""The zoo's table: a bug that is not found fails."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.sim.zoo import report
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
