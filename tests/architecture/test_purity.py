"""The decision core is pure: no clock, no randomness, no I/O, no logging, no SDK."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import spotd

ROOT = Path(spotd.__file__).parent
FOLDERS = ("domain", "planner", "history", "money", "sizing")
PURE = sorted(f for name in FOLDERS for f in (ROOT / name).rglob("*.py"))
FORBIDDEN_MODULES = {
    "asyncio", "boto3", "google", "azure", "httpx", "io", "logging", "os", "paramiko", "pathlib",
    "random", "requests", "secrets", "socket", "sqlalchemy", "structlog", "subprocess", "tempfile",
    "threading", "time", "urllib", "urllib3", "uuid",
}  # fmt: skip
FORBIDDEN_CALLS = {
    "open",
    "print",
    "input",
    "hash",
    "id",
    "now",
    "utcnow",
    "today",
    "uuid4",
    "urandom",
}


def offences(source: str) -> list[str]:
    """What a pure module may not do, found in `source`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.split(".")[0] in FORBIDDEN_MODULES]
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module.split(".")[0] in FORBIDDEN_MODULES:
                found.append(node.module)
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
            if name in FORBIDDEN_CALLS:
                found.append(f"{name}()")
        elif isinstance(node, (ast.For, ast.comprehension)):
            # The order of a set changes from process to process.
            over = node.iter
            if isinstance(over, (ast.Set, ast.SetComp)):
                found.append("iterates over a set")
    return found


@pytest.mark.parametrize("path", PURE, ids=lambda path: path.name)
def test_no_clock_no_chance_no_io(path: Path) -> None:
    assert offences(path.read_text()) == []


def test_the_test_would_see_an_offence() -> None:
    bad = "import time\nfrom os import path\nx = datetime.now()\nfor y in {1, 2}: open(y)\n"
    expected = ["iterates over a set", "now()", "open()", "os", "time"]
    assert sorted(offences(bad)) == expected
