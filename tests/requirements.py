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
ROW = re.compile(r"^\| ([A-Z]{2,3}-\d{2}) \| (.+?) \|$", re.MULTILINE)
# How many there are in each group of the specification: 208 in all.
GROUPS = {
    "PRE": 17, "CKP": 33, "HLT": 13, "RPV": 16, "PLC": 13, "ELA": 8, "CST": 20, "BUD": 9, "RSZ": 12,
    "DAT": 8, "HYB": 9, "HPS": 5, "MON": 12, "DRL": 4, "INF": 8, "SAV": 4, "PRV": 9, "UX": 8,
}  # fmt: skip
ALL = [f"{group}-{number:02d}" for group, count in GROUPS.items() for number in range(1, count + 1)]


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
    code = pytest.main(["-q", "--soak", "--no-header", "-p", "no:cacheprovider"], plugins=[collect])
    known = dict(ROW.findall(PAGE.read_text()))
    print()
    passing = 0
    for ident in [i for i in ALL if i in known]:
        tests = collect.shows.get(ident, [])
        passed = sum(collect.outcome.get(test) == "passed" for test in tests)
        state = "passing" if tests and passed == len(tests) else "FAILING" if tests else "NO TEST"
        passing += state == "passing"
        print(f"{ident}  {state:8} {known[ident]}")
        for test in tests:
            print(f"          {collect.outcome.get(test, 'not run'):8} {test}")
    print("\nnot covered yet:", ", ".join(i for i in ALL if i not in known))
    odd = sorted(set(collect.shows) - set(known)) + sorted(set(known) - set(ALL))
    if odd:
        print("\nnamed by tests but not in docs/requirements.md, or no such id:", ", ".join(odd))
    print(f"\n{passing} of {len(ALL)} requirements are shown by passing tests")
    return 1 if code or odd or passing < len(known) else 0


if __name__ == "__main__":
    sys.exit(main())
