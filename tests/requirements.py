"""`make requirements`: each numbered requirement, the tests that show it, and whether they pass.

The ids and their sentences come from docs/requirements.md; the tests name them with
`@pytest.mark.req("PRE-01")`. Exit 1 when a named test fails, or names an id that does not exist.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "requirements.md"
ROW = re.compile(r"^\| ([A-Z]{3}-\d{2}) \| (.+?) \|$", re.MULTILINE)
TOTAL = 208  # in the four source documents


class Collect:
    """Notes which tests show which requirement, and how they ended."""

    def __init__(self) -> None:
        self.shows: dict[str, list[str]] = defaultdict(list)
        self.outcome: dict[str, str] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        kept = []
        for item in items:
            marks = list(item.iter_markers("req"))
            for mark in marks:
                for ident in mark.args:
                    self.shows[ident].append(item.nodeid)
            kept += [item] if marks else []
        items[:] = kept

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome == "failed":
            self.outcome[report.nodeid] = report.outcome


def main() -> int:
    collect = Collect()
    code = pytest.main(["-q", "--no-header", "-p", "no:cacheprovider"], plugins=[collect])
    known = dict(ROW.findall(PAGE.read_text()))
    print()
    covered = 0
    for ident in sorted(set(known) | set(collect.shows)):
        tests = collect.shows.get(ident, [])
        passed = sum(collect.outcome.get(test) == "passed" for test in tests)
        state = (
            "passing" if tests and passed == len(tests) else "FAILING" if tests else "not covered"
        )
        covered += state == "passing"
        print(f"{ident}  {state:11}  {known.get(ident, 'NOT IN docs/requirements.md')}")
        for test in tests:
            print(f"          {collect.outcome.get(test, 'not run'):8} {test}")
    print(f"\n{covered} of {TOTAL} requirements are shown by passing tests")
    return 1 if code or set(collect.shows) - set(known) else 0


if __name__ == "__main__":
    sys.exit(main())
