"""Module names are the field's words, nothing retired is back, and no call packs its arguments."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import providers
import spotd
import trainer

ROOTS = [Path(package.__file__ or "").parent for package in (spotd, providers, trainer)]
FILES = sorted(path for root in ROOTS for path in root.rglob("*.py"))
GERUND = re.compile(r"(^|_)\w+ing(_|$)")
# Nouns of the field that end like one: no other word is as short and as well known.
NOUNS = {
    "billing_exports",
    "blocking_http",
    "housekeeping",
    "instance_listing",
    "lightning",
    "listing",
    "packaging",
    "remaining_work",
    "signing_proxy",
    "sizing",
    "slow_training",
    "spending",
    "stop_timing",
    "timing_stats",
    "training",
    "wiring",
    "wording",
}
# Module names that the tree had and has no more.
RETIRED = frozenset(
    {
        "beginning",
        "booked",
        "carriage",
        "casefile",
        "dangers",
        "demands",
        "departing",
        "doors",
        "draft",
        "duties",
        "elastic",
        "foretold",
        "freight",
        "handovers",
        "heard",
        "hindrance",
        "keeper",
        "kept",
        "lanes",
        "leaving",
        "lending",
        "lent",
        "loans",
        "meters",
        "nearer",
        "needs",
        "nursery",
        "office",
        "outbidding",
        "payback",
        "remembering",
        "restraints",
        "ribbon",
        "rounds",
        "said",
        "scraping",
        "sealed",
        "seen",
        "settling",
        "stays",
        "strays",
        "striking",
        "taking",
        "tallies",
        "tally",
        "telling",
        "tenure",
        "turns",
        "unwell",
        "vault",
        "verdicts",
        "visitors",
        "ward",
        "wayout",
        "ways",
        "wishes",
        "worth",
        "zygote",
    }
)


def packed(source: str) -> list[int]:
    """Return the lines of calls and displays that unpack a literal."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        items: list[ast.expr] = []
        if isinstance(node, ast.Call):
            items = node.args
        elif isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            items = node.elts
        lines += [
            item.lineno
            for item in items
            if isinstance(item, ast.Starred) and isinstance(item.value, (ast.Tuple, ast.List))
        ]
    return lines


def names() -> Iterator[tuple[Path, str]]:
    """Yield every module's path and own name."""
    for path in FILES:
        yield path, path.parent.name if path.stem == "__init__" else path.stem


@pytest.mark.parametrize("root", ROOTS, ids=lambda root: root.name)
def test_no_call_packs_its_arguments(root: Path) -> None:
    found = {str(path): lines for path in root.rglob("*.py") if (lines := packed(path.read_text()))}
    assert found == {}


def test_a_packed_call_is_seen() -> None:
    assert packed("f(*(a, b), c)") == [1]
    assert packed("x = [*(1, 2)]") == [1]
    assert packed("f(*rows, *[row for row in rows])") == []


def test_no_module_is_named_by_a_gerund() -> None:
    found = {str(path) for path, name in names() if GERUND.search(name) and name not in NOUNS}
    assert found == set()


def test_no_retired_module_is_back() -> None:
    assert {str(path) for path, name in names() if name in RETIRED} == set()


# Names of fields, variables and arguments that the code had and has no more.
RETIRED_IDENTIFIERS = {"wishes"}


def identifiers(source: str) -> set[str]:
    """Return the names of all variables, arguments and attributes."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, (ast.arg, ast.keyword)) and node.arg:
            found.add(node.arg)
    return found


def test_no_retired_identifier_is_back() -> None:
    found = {str(path): identifiers(path.read_text()) & RETIRED_IDENTIFIERS for path in FILES}
    assert {path: names for path, names in found.items() if names} == {}
    assert identifiers("a.b = f(c=d, *e)\ndef g(h): pass") >= {"a", "b", "c", "d", "e", "h"}


def test_the_top_of_spotd_is_packages() -> None:
    modules = {path.name for path in ROOTS[0].glob("*.py")}
    assert modules == {"__init__.py", "__main__.py"}


# A docstring says first what its object is or does; a clause as its subject has to be read twice.
CLAUSES = {"What", "Of", "Whose", "Who"}


def clause_first(source: str) -> list[str]:
    """The docstrings of modules, classes and functions that begin with a subject clause."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [
        ast.get_docstring(node) for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)
    ]
    return [text for text in texts if text and text.split()[0] in CLAUSES]


def test_no_docstring_begins_with_a_subject_clause() -> None:
    found = {str(path): clause_first(path.read_text()) for path in FILES}
    assert {path: texts for path, texts in found.items() if texts} == {}
    assert clause_first('def f():\n    """What is done."""\n') == ["What is done."]


MAX_FIELDS = 25
# Larger records, to be grouped into records of named parts. No new one joins them.
LARGE: set[str] = set()


def large_records(source: str) -> set[str]:
    """Dataclasses with more than MAX_FIELDS fields."""
    return {
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
        and any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
        and sum(isinstance(line, ast.AnnAssign) for line in node.body) > MAX_FIELDS
    }


def test_no_new_record_has_too_many_fields() -> None:
    assert set().union(*(large_records(path.read_text()) for path in FILES)) == LARGE


# Names that the frameworks of users' programs give.
SHARED_NAMES = {"Callback"}


def test_a_class_name_is_there_once_in_its_package() -> None:
    """A package is a folder below `spotd`, `providers` or `trainer`."""
    places: dict[tuple[str, str], list[str]] = {}
    for root in ROOTS:
        for path in root.rglob("*.py"):
            package = f"{root.name}/{path.relative_to(root).parts[0]}"
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault((package, node.name), []).append(path.name)
    twice = {key: files for key, files in places.items() if len(files) > 1}
    assert {name for _, name in twice} <= SHARED_NAMES, twice
