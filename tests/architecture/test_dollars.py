"""Dollars are formatted by one function: `providers/dollars.py`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import providers
import spotd
import trainer

ROOTS = [Path(package.__file__ or "").parent for package in (spotd, providers, trainer)]
TREE = ROOTS[0].parent
FORMATTER = "providers/dollars.py"
FILES = sorted(
    path
    for root in ROOTS
    for path in root.rglob("*.py")
    if path.relative_to(TREE).as_posix() != FORMATTER
)
# What a program reads, not a person: the option's argument, and a field of a cloud's request.
FOR_PROGRAMS = {
    ("spotd/cli/doctor_live_gpu.py", "least_usd + 0.01"),
    ("providers/aws/launch.py", "request.max_price_microusd_per_h / 1000000.0"),
}
NUMBER = re.compile(r"[+,]*\.?\d*[efgEFGn]$|[+,]+$")
AMOUNT = re.compile(r"(?<![a-z])(?<!per_)(micro)?usd(?![a-z])")
UNIT = re.compile(r"^ ?(USD|usd|dollars?)\b")
BY_TEMPLATE = re.compile(r"\$(%[-+]?\d*\.?\d*[dfg]|\{\w*:[^}]*[efg]\})")


def by_hand(source: str) -> Iterator[str]:
    """Yield the expressions that are formatted as dollars, each without the formatter."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if BY_TEMPLATE.search(node.value):
                yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield from _in_f_string(node)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "format":
            yield from filter(AMOUNT.search, (ast.unparse(part) for part in node.args))


def _in_f_string(node: ast.JoinedStr) -> Iterator[str]:
    parts = [*node.values, ast.Constant("")]
    before = ""
    for part, after in pairwise(parts):
        if isinstance(part, ast.Constant):
            before = str(part.value)
            continue
        assert isinstance(part, ast.FormattedValue)
        text = ast.unparse(part.value)
        called = isinstance(part.value, ast.Call)
        spec = ast.unparse(part.format_spec)[2:-1] if part.format_spec else ""
        is_number = bool(NUMBER.search(spec))
        follows = after.value if isinstance(after, ast.Constant) else ""
        is_amount = bool(AMOUNT.search(text)) and not called
        if (
            (before.endswith("$") and (is_number or is_amount))
            or (is_number and UNIT.match(str(follows)))
            or (is_number and AMOUNT.search(text))
        ):
            yield text
        before = ""


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TREE)))
def test_no_dollars_are_formatted_by_hand(path: Path) -> None:
    name = path.relative_to(TREE).as_posix()
    found = [text for text in by_hand(path.read_text()) if (name, text) not in FOR_PROGRAMS]
    assert found == [], f"{name}: use format_usd or format_microusd of {FORMATTER}"


@pytest.mark.parametrize(
    "source",
    [
        'f"${x:.2f}"',
        'f"{a} ${x / 1e6:,.2f}/h"',
        'f"${x:g} a GB"',
        'f"${usd}"',
        "f\"${row['cost_usd']}\"",
        'f"{x:.4f} USD"',
        'f"{x:.2f}usd"',
        'f"{cap_usd:.2f} may be spent"',
        'f"{spec.max_cost_microusd / 1e6:.2f}"',
        "f\"{row['difference_usd']:+,.2f}\"",
        'f"{usd(rate):,.0f}"',
        '"$%.2f" % x',
        '"${:,.2f}".format(x)',
        'format(usd, ".2f")',
    ],
)
def test_the_test_sees_dollars_by_hand(source: str) -> None:
    assert list(by_hand(source))


@pytest.mark.parametrize(
    "source",
    [
        'f"{format_usd(x)}/h"',
        'f"${name}"',
        'f"{hours:.1f} h"',
        "f\"{row['tflops_per_usd']:,.1f}\"",
        'f"{usd_text} in all"',
        '"${HOME}/x"',
    ],
)
def test_the_test_lets_others_pass(source: str) -> None:
    assert list(by_hand(source)) == []


def test_what_programs_read_is_still_there() -> None:
    left = {
        (name, text) for name, text in FOR_PROGRAMS if text in [*by_hand((TREE / name).read_text())]
    }
    assert left == FOR_PROGRAMS
