"""What pyproject.toml says of the packages is so: nothing listed is missing, nothing needed is not
listed."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import spotd
from spotd.act.bundle import sources

ROOT = Path(spotd.__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DATA = PROJECT["tool"]["setuptools"]["package-data"]
OURS = ("spotd", "providers", "trainer", "migrations")


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9_.-]+", requirement)
    assert found
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def imported() -> set[str]:
    """The top-level modules that our sources import."""
    found = set()
    for package in OURS:
        for path in (ROOT / package).rglob("*.py"):
            found |= set(re.findall(r"^\s*(?:import|from) (\w+)", path.read_text(), re.MULTILINE))
    return found


@pytest.mark.parametrize("package", DATA)
def test_every_data_file_is_there(package: str) -> None:
    for pattern in DATA[package]:
        assert list((ROOT / package).glob(pattern)), pattern


def test_ruff_knows_what_runs_on_the_nodes_older_python() -> None:
    patterns = PROJECT["tool"]["ruff"]["per-file-target-version"]
    matched = {pattern: {*ROOT.glob(pattern)} for pattern in patterns}
    assert [pattern for pattern, paths in matched.items() if not paths] == []
    assert {*sources().values()} <= set().union(*matched.values())


@pytest.mark.parametrize("package", PROJECT["tool"]["mypy"]["packages"])
def test_typed_packages_say_so(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()
    assert "py.typed" in DATA[package]


def test_every_dependency_is_imported() -> None:
    names = imported()
    used = {
        _name(distribution)
        for module, distributions in packages_distributions().items()
        for distribution in distributions
        if module in names
    }
    assert {_name(item) for item in PROJECT["project"]["dependencies"]} - used == set()
