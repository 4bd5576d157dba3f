"""Every test of this folder that asks for `url` or `store` runs on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spotd.store.sql import SqlStore, open_store
from tests.rigs import postgres
from tests.spotd.store.build import NOW, Bell

DEPLOYMENT = "d0"


@pytest.fixture(scope="session")
def server() -> Iterator[postgres.Postgres]:
    """One PostgreSQL for all tests, with a template that has the schema."""
    with postgres.running() as running:
        running.execute("CREATE DATABASE ready")
        make(running.url("ready")).close()
        yield running


def make(url: str, bell: Bell | None = None) -> SqlStore:
    """Open the store at `url`."""
    return open_store(
        url, now=lambda: NOW, notify=bell or Bell(), deployment_factory=lambda: DEPLOYMENT
    )


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of the test's own."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/spotd.db"
    running: postgres.Postgres = request.getfixturevalue("server")
    return running.url(running.create("ready"))


@pytest.fixture
def bell() -> Bell:
    """Counts what `notify` was called for."""
    return Bell()


@pytest.fixture
def store(url: str, bell: Bell) -> Iterator[SqlStore]:
    """An open, empty store."""
    opened = make(url, bell)
    yield opened
    opened.close()
