"""Files and functions stay small enough to be read; the ceilings are smell detectors."""

from __future__ import annotations

import ast
import statistics
from pathlib import Path

import providers
import spotd
import trainer

ROOTS = [Path(package.__file__ or "").parent for package in (spotd, providers, trainer)]
FILES = sorted(path for root in ROOTS for path in root.rglob("*.py"))
MAX_FILE_LINES = 600
REASON = "# More than 600 lines: "  # a comment in its head lets a file of one large noun exceed it
HEAD_LINES = 20
MAX_FUNCTION_LINES = 60


def too_large(path: Path) -> list[str]:
    """What of this file is above its ceiling."""
    text = path.read_text()
    lines = len(text.splitlines())
    head = text.splitlines()[:HEAD_LINES]
    reasoned = any(line.startswith(REASON) for line in head)
    found = [f"{path}: {lines} lines"] if lines > MAX_FILE_LINES and not reasoned else []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            found += [f"{path}: {node.name} has {lines}"] if lines > MAX_FUNCTION_LINES else []
    return found


def test_ceilings() -> None:
    assert len(FILES) > 500
    assert [text for path in FILES for text in too_large(path)] == []


def test_what_is_above_a_ceiling_is_seen(tmp_path: Path) -> None:
    long = tmp_path / "long.py"
    long.write_text("def f():\n" + "    f()\n" * MAX_FUNCTION_LINES)
    assert too_large(long) == [f"{long}: f has {MAX_FUNCTION_LINES + 1}"]
    long.write_text("pass\n" * (MAX_FILE_LINES + 1))
    assert too_large(long) == [f"{long}: {MAX_FILE_LINES + 1} lines"]
    long.write_text(f"{REASON}it is a table\n" + "pass\n" * MAX_FILE_LINES)
    assert too_large(long) == []


def test_the_median_file_is_short() -> None:
    sizes = [len(path.read_text().splitlines()) for path in FILES]
    assert statistics.median([size for size in sizes if size > 5]) <= 200


def test_no_name_that_says_nothing() -> None:
    empty = {
        "manager",
        "handler",
        "utils",
        "util",
        "helper",
        "helpers",
        "misc",
        "common",
    }
    assert [path.name for path in FILES if path.stem in empty] == []
