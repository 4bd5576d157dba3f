"""docs/resume.md is what the markers of the tests give."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.behaviours import PAGE, ROOT, WAYS, Behaviour, Rows, Shown, page

ROW = re.compile(r"^\| .+ \| .*\[`.+`\]\((\.\./tests/[^)]+)\).* \|$", re.MULTILINE)
SGD = Behaviour("momentum of SGD", "Run")
GONE = Behaviour("gradients", "Run", holds=False, because="they are no state")


def test_the_page_is_what_the_tests_give() -> None:
    """In a process of its own: all tests that carry the marker are collected once more."""
    command = [sys.executable, "-m", "tests.behaviours", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_has_at_least_sixty_rows_and_each_links_to_a_file() -> None:
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    assert len(rows) >= 60
    assert [link for link in rows if not (PAGE.parent / link).is_file()] == []


def test_a_test_that_is_gone_takes_its_row_with_it() -> None:
    rows: Rows = {SGD: [Shown("tests/a/test_b.py::test_c[x]")], GONE: [Shown("tests/a.py::test_d")]}
    text = page(rows)
    assert "| momentum of SGD | [`test_c[x]`](../tests/a/test_b.py) |" in text
    assert "| gradients | Run | they are no state | [`test_d`](../tests/a.py) |" in text
    assert "**2 behaviours: 1 hold, 1 do not.**" in text
    assert "momentum of SGD" not in page({GONE: rows[GONE]})


def test_cases_of_one_test_are_one_link_and_soak_is_said() -> None:
    cases = [Shown(f"tests/a.py::test_b[{name}]", soak=True) for name in "xy"]
    assert "| [`test_b`](../tests/a.py) *(soak)* |" in page({SGD: cases})
    one_runs = [*cases, Shown("tests/a.py::test_b[z]")]
    assert "| [`test_b`](../tests/a.py) |" in page({SGD: one_runs})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("momentum", "Rnu"), "way='Rnu' is none of Run, "),
        (("", "Run"), "is a text without"),
        (("a | b", "Run"), "is a text without"),
        (("momentum", "Run", False), "because=... belongs to holds=False"),
        (("momentum", "Run", True, "no"), "because=... belongs to holds=False"),
    ],
)
def test_a_marker_that_says_nothing_is_refused(values: tuple[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Behaviour(*values)


def test_what_holds_and_does_not_is_refused() -> None:
    other = Behaviour(SGD.text, SGD.way, holds=False, because="of this")
    with pytest.raises(ValueError, match="is said to hold and not to hold"):
        page({SGD: [Shown("a.py::test_b")], other: [Shown("a.py::test_c")]})


def test_each_way_leads_to_a_page() -> None:
    for meaning in WAYS.values():
        for target in re.findall(r"\]\(([^)#]+)", meaning):
            assert (Path(PAGE).parent / target).is_file(), target
