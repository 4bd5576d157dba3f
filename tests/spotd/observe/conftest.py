"""A store of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spotd.act.bundle import Bundle, build_bundle
from spotd.store.sql_store import SqlStore, open_store
from tests.fixtures.tables import with_tables
from tests.spotd.store.build import NOW


@pytest.fixture
def store(quick_folder: Path) -> Iterator[SqlStore]:
    """An empty store."""
    opened = open_store(
        with_tables(quick_folder / "spotd.db"),
        now=lambda: NOW,
        notify=lambda: None,
        deployment_factory=lambda: "d0",
    )
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def bundle() -> Bundle:
    """The agent as it travels."""
    return build_bundle()
