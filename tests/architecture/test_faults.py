"""docs/faults.md speaks of every class of fault, and of tests and simulated faults that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.sim.fault_schedule import FAULTS

TESTS = Path(__file__).parent.parent
ROWS = re.findall(
    r"^\| (\d+) \| (.+) \| (.+) \| (.+) \|$",
    (TESTS.parent / "docs" / "faults.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)
# The classes that only a real process can show (RP in the list that they come from).
REAL = frozenset(
    {1, 6, 7, 8, 10, 13, 15, 16, 17, 18, 19, 22, 23, 24}
    | {46, 47, 48, 49, 50, 51, 56, 58, 59, 61, 62, 64, 65, 66, 67, 75}
)


def _tests_in(path: Path) -> set[str]:
    """The names of the tests in a file, those in classes included."""
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    }


def _wrong(shown: str) -> list[str]:
    """What the last cell of a row names that does not exist."""
    found = []
    for named in re.findall(r"`([^`]+)`", shown):
        place, _, test = named.partition("::")
        fault = named.removeprefix("sim:")
        path = TESTS / place
        known = fault in FAULTS if fault != named else path.is_file() and test in _tests_in(path)
        found += [] if known else [named]
    return found


def test_every_class_has_its_row() -> None:
    assert [int(number) for number, *_ in ROWS] == list(range(1, 82))


@pytest.mark.parametrize(("number", "_fault", "does", "shown"), ROWS, ids=[row[0] for row in ROWS])
def test_a_row_names_tests_that_exist_or_says_what_is_missing(
    number: str, _fault: str, does: str, shown: str
) -> None:
    assert _wrong(shown) == []
    assert "`" in shown or "**MISSING" in shown
    assert "MISSING" not in does, "what is missing stands in the last column"
    if int(number) in REAL:
        assert "RP: `" in shown or "**MISSING (RP)**" in shown


def test_a_wrong_name_would_be_seen() -> None:
    assert _wrong("`spotd/daemon/test_loop.py::test_a_poke_wakes_at_once`, `sim:preempt`") == []
    wrong = ["spotd/daemon/test_loop.py::test_nothing", "spotd/nowhere.py::test_x", "sim:rain"]
    assert _wrong(", ".join(f"`{name}`" for name in wrong)) == wrong


def test_a_simulated_fault_stands_for_the_classes_whose_rows_name_it() -> None:
    for number, _fault, _does, shown in ROWS:
        for name in re.findall(r"`sim:(\w+)`", shown):
            assert int(number) in FAULTS[name].numbers, f"{name} in the row of {number}"


def test_the_page_of_the_savers_faults_names_tests_that_exist() -> None:
    page = (TESTS.parent / "docs" / "saver-faults.md").read_text(encoding="utf-8")
    named = re.findall(r"`([^`]+\.py)::(\w+)`", page)
    assert len(named) == page.count(".py::") > 0
    for path, test in named:
        assert test in _tests_in(TESTS / "trainer" / path)
