"""One local cloud for the tests of a module; each takes tokens of its own."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from providers.local.control import Running, running


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A cloud with the default scenario."""
    with running(tmp_path_factory.mktemp("cloud")) as cloud:
        yield cloud


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[[str], Running]]:
    """Start clouds with scenarios of the test's own."""
    with contextlib.ExitStack() as stack:
        numbers = itertools.count()

        def start(scenario: str) -> Running:
            folder = tmp_path / f"cloud-{next(numbers)}"
            folder.mkdir()
            path = folder / "scenario.toml"
            path.write_text(scenario)
            return stack.enter_context(running(folder, path))

        yield start
