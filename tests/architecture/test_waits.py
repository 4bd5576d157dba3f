"""No test fails because the machine stood still: none bounds how little time has passed.

A machine with much other work may halt for half a minute at any line. A test that something is not
waited for makes the wait longer than `LIMIT_S`, or endless until the test ends it; or it looks at
an order of events, a count or a state.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
STANDSTILL_S = 30.0
# The simulator's time is simulated, and a benchmark measures.
FILES = sorted(
    path for path in TESTS.rglob("*.py") if path.relative_to(TESTS).parts[0] not in ("sim", "bench")
)
CLOCKS = {"monotonic", "perf_counter", "time", "time_ns", "monotonic_ns", "perf_counter_ns"}
STAMPS = {"at_us", "published_at_us"}  # of a journal's entry, of a notice: when a process wrote it
WAITS = {"until", "wait_until", "wait_for"}
_LIMITS = ("limit_s", "timeout_s")
ALLOWED = {
    "spotd/demo/test_box.py::test_waiting_in_vain_says_for_what": "it waits in vain, on purpose",
}


class _Function:
    """The names in a function that hold readings of a clock, and those that hold the time that has
    passed since one."""

    def __init__(self, function: ast.AST, constants: dict[str, float]) -> None:
        self.function, self.constants = function, constants
        self.readings: set[str] = set()
        self.spans: set[str] = set()
        known = -1
        while known < (known := len(self.readings) + len(self.spans)):
            for names, value in _bindings(function):
                if self.has_span(value):
                    self.spans |= names
                elif self.has_reading(value) and not self._is_deadline(value):
                    self.readings |= names

    def has_reading(self, node: ast.AST) -> bool:
        return any(
            _is_reading(part) or (isinstance(part, ast.Name) and part.id in self.readings)
            for part in ast.walk(node)
        )

    def has_span(self, node: ast.AST) -> bool:
        """Whether it subtracts something from a reading. What is left until a deadline only becomes
        less when the machine stands still, and may have an upper bound."""
        return any(
            (isinstance(part, ast.Name) and part.id in self.spans)
            or (
                isinstance(part, ast.BinOp)
                and isinstance(part.op, ast.Sub)
                and self.has_reading(part.left)
            )
            for part in ast.walk(node)
        )

    def _is_deadline(self, node: ast.AST) -> bool:
        """Whether it adds a number to a reading: a time to come."""
        return any(
            isinstance(part, ast.BinOp)
            and isinstance(part.op, ast.Add)
            and isinstance(part.right, ast.Constant)
            and self.has_reading(part.left)
            for part in ast.walk(node)
        )

    def is_short(self, node: ast.expr) -> bool:
        """Whether it is a number below the limit, or a reading and such a number."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            short = [self.is_short(side) for side in (node.left, node.right)]
            read = [self.has_reading(side) for side in (node.left, node.right)]
            return any(short) and all(a or b for a, b in zip(short, read, strict=True))
        if isinstance(node, ast.Name):
            return self.constants.get(node.id, STANDSTILL_S) < STANDSTILL_S
        return _is_short_number(node)

    def bounds(self) -> Iterator[int]:
        """The lines that allow less time than the machine may stand still."""
        for node in ast.walk(self.function):
            if isinstance(node, ast.Assert):
                compared = [part for part in ast.walk(node.test) if isinstance(part, ast.Compare)]
                if any(self._is_bound(part) for part in compared):
                    yield node.lineno
            elif isinstance(node, ast.Call) and any(map(_is_short_number, _limits(node))):
                yield node.lineno

    def _is_bound(self, compared: ast.Compare) -> bool:
        sides = [compared.left, *compared.comparators]
        for left, operator, right in zip(sides, compared.ops, sides[1:], strict=False):
            if isinstance(operator, ast.Eq) and _is_near(right) and self.has_reading(left):
                return True
            less, more = (right, left) if isinstance(operator, ast.Gt | ast.GtE) else (left, right)
            ordered = isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE)
            sums = isinstance(more, ast.BinOp) and self.has_reading(less)
            if ordered and (self.has_span(less) or sums) and self.is_short(more):
                return True
        return False


def _is_reading(node: ast.AST) -> bool:
    """Whether it calls a clock of `time`, or is a stamp that a process wrote."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        module = node.func.value
        return node.func.attr in CLOCKS and isinstance(module, ast.Name) and module.id == "time"
    return isinstance(node, ast.Attribute) and node.attr in STAMPS


def _is_short_number(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, int | float)
        and node.value < STANDSTILL_S
    )


def _is_near(node: ast.expr) -> bool:
    """Whether it is `pytest.approx(…, abs=N)` with a short N."""
    return isinstance(node, ast.Call) and any(
        key.arg == "abs" and _is_short_number(key.value) for key in node.keywords
    )


def _limits(node: ast.AST) -> list[ast.expr]:
    """The arguments of a call of WAITS that may be its limit."""
    match node:
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in WAITS:
            return args[1:] + [key.value for key in keywords if key.arg in _LIMITS]
    return []


def _bindings(function: ast.AST) -> Iterator[tuple[set[str], ast.expr]]:
    """Names, and what is assigned or appended to them."""
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                pairs = list(zip(names, values, strict=False))
            case ast.Assign(targets=targets, value=value):
                pairs = [(target, value) for target in targets]
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                pairs = [(target, value)]
            case ast.NamedExpr(target=target, value=value):
                pairs = [(target, value)]
            case ast.Call(func=ast.Attribute(value=target, attr="append"), args=[value]):
                pairs = [(target, value)]
            case _:
                continue
        for target, value in pairs:
            yield {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}, value


def _constants(tree: ast.Module) -> dict[str, float]:
    """The module's names of numbers."""
    return {
        node.targets[0].id: float(node.value.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, int | float)
    }


def short_bounds(source: str) -> dict[int, str]:
    """The lines that fail when the machine stands still, with the function."""
    tree = ast.parse(source)
    constants = _constants(tree)
    return {
        line: node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and any(_is_reading(part) or _limits(part) for part in ast.walk(node))
        for line in _Function(node, constants).bounds()
    }


def test_no_test_fails_because_the_machine_stood_still() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in FILES
        for line, name in short_bounds(path.read_text(encoding="utf-8")).items()
        if f"{path.relative_to(TESTS)}::{name}" not in ALLOWED
    ]
    assert not found, (
        "on a busy machine half a minute passes at any line. Make the wait that must not be longer "
        f"than LIMIT_S of tests/fixtures/waiting.py, or look at an order or a state: {found}"
    )


@pytest.mark.parametrize(
    "body",
    [
        "assert time.monotonic() - began < 3.0",
        "assert 3 > (time.perf_counter() - began)",
        "assert 0.2 <= time.monotonic() - began < QUICK_S",
        "took_s = time.monotonic() - began\nassert took_s < 10",
        "assert time.monotonic() < began + 3",
        "at = [began]\nat.append(time.time())\nassert at[1] - at[0] <= 2.0 + 0.8 and True",
        "first, last = time.time(), began\nassert abs(first - last) < 1",
        "assert (left.at_us - came.at_us) / 1e6 < 1.0",
        "assert left_us / 1e6 - time.time() == pytest.approx(3600, abs=10)",
        'wait_until("it", lambda: True, 5.0)',
        "until(lambda: True, limit_s=5.0)",
    ],
)
def test_a_short_bound_is_found(body: str) -> None:
    assert short_bounds(_test(body)), body


@pytest.mark.parametrize(
    "body",
    [
        "assert time.monotonic() - began >= 0.3",
        "assert time.monotonic() - began < LIMIT_S",
        "assert time.monotonic() - began < 300.0",
        "end = began + 5\nwhile time.monotonic() < end:\n    pass",
        "assert began <= stamp <= time.monotonic()",
        "assert (deadline_us - left.at_us) / 1e6 <= 13.6",
        "deadline_s = time.time() + 9.0\nassert deadline_s - left.at_us / 1e6 <= 3.4",
        "assert len(rows) < 5",
        'wait_until("it", lambda: True)',
    ],
)
def test_what_no_standstill_spoils_is_left_alone(body: str) -> None:
    assert not short_bounds(_test(body)), body


def _test(body: str) -> str:
    head = "QUICK_S = 7.0\ndef test_it() -> None:\n    began = time.monotonic()\n"
    return head + textwrap.indent(body, "    ")
