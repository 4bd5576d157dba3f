"""Stages to play on: see stage.py."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.spotd.stage import Stage, stages


@pytest.fixture
def stage_folder() -> Iterator[Path]:
    """In memory where the machine has such a folder: a story is some hundred commits."""
    memory = Path("/dev/shm")
    parent = memory if memory.is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="spotd-", dir=parent))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def make_stage(stage_folder: Path) -> Iterator[Callable[[], Stage]]:
    """Makes stages; each has its own store, clouds and time."""
    yield from stages(stage_folder)


@pytest.fixture
def stage(make_stage: Callable[[], Stage]) -> Stage:
    """One stage."""
    return make_stage()
