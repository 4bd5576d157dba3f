"""Files and functions stay small enough to be read; the ceilings are smell detectors."""

from __future__ import annotations

import ast
import statistics
from pathlib import Path

import pytest

import providers
import spotd
import trainer

ROOTS = [Path(package.__file__ or "").parent for package in (spotd, providers, trainer)]
FILES = sorted(path for root in ROOTS for path in root.rglob("*.py"))
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60


def _name(path: Path) -> str:
    return str(path.relative_to(path.parents[len(path.parts) - path.parts.index(_root(path)) - 1]))


def _root(path: Path) -> str:
    return next(root.name for root in ROOTS if root in path.parents)


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_ceilings(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_FILE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= MAX_FUNCTION_LINES, f"{node.name} has {lines} lines"


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
        "service",
        "misc",
        "common",
    }
    assert [path.name for path in FILES if path.stem in empty] == []
