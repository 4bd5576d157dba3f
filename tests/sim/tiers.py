"""The three stores that a run may stand on; one contract suite holds all to the same word."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import bindparam

from spotd.domain.node import Node
from spotd.store import schema
from spotd.store.interface import Store
from spotd.store.rows import nodes_query, read_nodes
from spotd.store.sql_store import SqlStore, open_store
from tests.fixtures import postgres
from tests.fixtures.memory import MEMORY
from tests.sim.kernel import EPOCH_US
from tests.sim.memory_store import MemoryStore

DEPLOYMENT = "d0"

# No limits of real time, which would make a run depend on how busy the machine is: there is one
# session at a time, and nobody to wait for.
_PATIENT = "&connect_timeout=300&options=-c%20statement_timeout%3D0"

Open = Callable[[Callable[[], int], Callable[[], None]], Store]  # (now_us, notify)


@contextmanager
def memory() -> Iterator[Open]:
    yield lambda _now_us, notify: MemoryStore(DEPLOYMENT, notify)


@contextmanager
def sqlite() -> Iterator[Open]:
    """A file, as in production; on a disk that forgets, so that no run waits for one."""
    with TemporaryDirectory(prefix="spotd-sim-", dir=MEMORY, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        ready, used = folder / "ready.db", folder / "used.db"
        _prepare(f"sqlite:///{ready}")

        def open_copy(now_us: Callable[[], int], notify: Callable[[], None]) -> Store:
            for old in folder.glob("used.db*"):
                old.unlink()
            shutil.copy(ready, used)
            return _sql(f"sqlite:///{used}", now_us, notify)

        yield open_copy


@contextmanager
def postgresql() -> Iterator[Open]:
    """A server that syncs nothing: what a crash of it would lose is thrown away anyway."""
    careless = dict.fromkeys(("synchronous_commit", "full_page_writes", "autovacuum", "jit"), "off")
    with postgres.running(settings=careless) as server:
        server.execute("CREATE DATABASE ready")
        _prepare(server.url("ready"))
        used = ""

        def open_copy(now_us: Callable[[], int], notify: Callable[[], None]) -> Store:
            nonlocal used
            if used:
                server.execute(f"DROP DATABASE {used}")
            used = server.create("ready")
            store = _sql(server.url(used) + _PATIENT, now_us, notify)
            # Nobody restarts this server: no connection is asked first whether it still is one.
            store.session.database._writer.pool._pre_ping = False
            return store

        yield open_copy


def _prepare(url: str) -> None:
    """An empty database with the schema, to be copied for each run."""
    _sql(url, lambda: EPOCH_US, lambda: None).close()


def _sql(url: str, now_us: Callable[[], int], notify: Callable[[], None]) -> SqlStore:
    return open_store(url, now=now_us, notify=notify, deployment_factory=lambda: DEPLOYMENT)


_OF_TOKEN = nodes_query(schema.nodes.c.token == bindparam("token"))


def node_of(store: Store, token: str) -> Node | None:
    """The row that was to have the machine of that token. No daemon asks this: it is for who judges
    machines by it, as often as every look."""
    if isinstance(store, MemoryStore):
        return store.node_of(token)
    assert isinstance(store, SqlStore)
    found = store.session.database.read_one(
        lambda conn: read_nodes(conn, _OF_TOKEN, {"token": token})
    )
    return found[0] if found else None


TIERS = {"memory": memory, "sqlite": sqlite, "postgresql": postgresql}
