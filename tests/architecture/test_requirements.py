"""The page of requirements and the tests that name them speak of the same ones."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.requirements import ALL, PAGE, ROW

TESTS = Path(__file__).parent.parent


def _named(tree: ast.AST) -> Iterator[str]:
    """The ids in every `pytest.mark.req(...)`, and in tables of ids that are handed to it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in ALL:
            yield str(node.value)


def _unknown(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            words = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            if node.func.attr == "req":
                yield from (str(word) for word in words if word not in ALL)


def test_every_id_on_the_page_has_a_test_and_every_id_in_a_test_is_on_the_page() -> None:
    on_page = {ident for ident, _ in ROW.findall(PAGE.read_text())}
    in_tests: set[str] = set()
    for path in (*TESTS.rglob("test_*.py"), *TESTS.rglob("conformance.py")):
        tree = ast.parse(path.read_text())
        assert list(_unknown(tree)) == [], path
        in_tests.update(_named(tree))
    assert on_page <= set(ALL)
    assert in_tests - on_page == set()
    assert on_page - in_tests == set()
