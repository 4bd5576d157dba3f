"""A store on SQLite and a receiver like Slack."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spotd.store.sql_store import SqlStore, open_store
from tests.fixtures import slack as rig
from tests.fixtures.slack import Slack
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


@pytest.fixture
def slack() -> Iterator[Slack]:
    """A receiver that takes what Slack would take."""
    with rig.serving() as receiver:
        yield receiver
