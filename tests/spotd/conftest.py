"""Folders in memory, and stages to play on: see stage.py."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fixtures.memory import MEMORY
from tests.spotd.fake_world import Stage, stages


@pytest.fixture
def quick_folder() -> Iterator[Path]:
    """In memory where the machine has such a folder: a story is some hundred commits."""
    with tempfile.TemporaryDirectory(
        prefix="spotd-", dir=MEMORY, ignore_cleanup_errors=True
    ) as name:
        yield Path(name)


@pytest.fixture
def make_stage(quick_folder: Path) -> Iterator[Callable[..., Stage]]:
    """Makes stages; each has its own store, clouds and time."""
    yield from stages(quick_folder)


@pytest.fixture
def stage(make_stage: Callable[[], Stage]) -> Stage:
    """One stage."""
    return make_stage()


@pytest.fixture
def sql_stage(make_stage: Callable[..., Stage]) -> Stage:
    """One whose store is a database."""
    return make_stage(sql=True)
