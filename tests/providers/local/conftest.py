"""Fixtures: a local cloud shared by the tests of a module, which use different tokens."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from providers.local.control import RunningCloud
from tests.fixtures.local_cloud import running


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCloud]:
    """A cloud with the default scenario."""
    with running(tmp_path_factory.mktemp("cloud")) as cloud:
        yield cloud


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[[str], RunningCloud]]:
    """Start local clouds with custom scenarios."""
    with contextlib.ExitStack() as stack:
        numbers = itertools.count()

        def start(scenario: str) -> RunningCloud:
            folder = tmp_path / f"cloud-{next(numbers)}"
            folder.mkdir()
            path = folder / "scenario.toml"
            path.write_text(scenario)
            return stack.enter_context(running(folder, path))

        yield start
