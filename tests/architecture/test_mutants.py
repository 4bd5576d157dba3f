"""The page of mutants speaks of every module that decides, and adds up."""

from __future__ import annotations

import re
from pathlib import Path

import spotd
import spotd.planner

DECIDE = Path(spotd.planner.__file__ or "").parent
MODULES = {str(p.relative_to(DECIDE)) for p in DECIDE.rglob("*.py") if p.name != "__init__.py"}
PAGE = Path(spotd.__file__).parent.parent / "docs" / "mutants.md"
ROW = re.compile(r"^\| (\S+) \| (\d+) \| (\d+) \| (\d+) \|", re.MULTILINE)


def test_every_module_that_decides_was_mutated() -> None:
    rows = {name: tuple(map(int, counts)) for name, *counts in ROW.findall(PAGE.read_text())}
    total = rows.pop("all")
    assert rows.keys() == MODULES
    assert total == tuple(map(sum, zip(*rows.values(), strict=True)))
    assert total[0] == total[1] + total[2]
