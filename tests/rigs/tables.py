"""SQLite databases that have spotd's tables already: to make them anew is most of what a test's
store costs. Whose they are, and since when, says who opens them first."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from spotd.store.engine import Database
from spotd.store.version import _create
from tests.rigs.memory import MEMORY


@cache
def _tables() -> bytes:
    with tempfile.TemporaryDirectory(prefix="spotd-", dir=MEMORY) as name:
        path = Path(name) / "spotd.db"
        database = Database(f"sqlite:///{path}")
        database.write(_create)
        database.close()
        return path.read_bytes()


def with_tables(path: Path) -> str:
    """The URL of a new one at `path`."""
    path.touch(0o600)
    path.write_bytes(_tables())
    return f"sqlite:///{path}"
