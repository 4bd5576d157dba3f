"""Every test of this folder that asks for `store` runs on each of the three stores.

Tests that open a database themselves, look into one, or let several processes or threads share one
ask for `url` or `sql_store`: they run on SQLite and on PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spotd.store.interface import Store
from spotd.store.sql_store import SqlStore, open_store
from tests.fixtures import postgres
from tests.fixtures.tables import with_tables
from tests.sim.memory_store import MemoryStore
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


@contextmanager
def _database(kind: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    if kind == "sqlite":
        yield with_tables(folder / "spotd.db")
        return
    running: postgres.Postgres = request.getfixturevalue("server")
    with running.lent("ready") as name:
        yield running.url(name)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, quick_folder: Path) -> Iterator[str]:
    """A database of the test's own."""
    with _database(request.param, request, quick_folder) as found:
        yield found


@pytest.fixture
def bell() -> Bell:
    """Counts what `notify` was called for."""
    return Bell()


@pytest.fixture
def sql_store(url: str, bell: Bell) -> Iterator[SqlStore]:
    """An open, empty store in the database at `url`."""
    opened = make(url, bell)
    yield opened
    opened.close()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, quick_folder: Path, bell: Bell) -> Iterator[Store]:
    """An open, empty store, of which nothing is known but that it is one."""
    if request.param == "memory":
        opened: Store = MemoryStore(DEPLOYMENT, bell)
        yield opened
        opened.close()
        return
    with _database(request.param, request, quick_folder) as url:
        opened = make(url, bell)
        yield opened
        opened.close()
