"""The table of mutants counts what was tried, and tells of what was not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import main, table


def test_a_mutant_is_killed_survives_or_waits() -> None:
    found = {"b.py": {"x#1": 1, "x#2": 0, "x#3": 33, "x#4": None}, "a.py": {"y#1": -24}}
    assert table(found)[2:] == [
        "| a.py | 1 | 1 | 0 |",
        "| b.py | 4 | 1 | 2 |",
        "| all | 5 | 2 | 2 |",
        "\n1 mutants were not tried yet: run it again",
    ]


def test_no_mutants_are_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main() == 1
    assert "run `make mutants`" in capsys.readouterr().out
