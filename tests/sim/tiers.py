"""The three stores that a run may stand on; one contract suite holds all to the same word."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from spotd.store.base import Store
from spotd.store.sql import open_store
from tests.rigs import postgres
from tests.sim.memory_store import MemoryStore

DEPLOYMENT = "d0"

Open = Callable[[Callable[[], int], Callable[[], None]], Store]  # (now_us, notify)


@contextmanager
def memory() -> Iterator[Open]:
    yield lambda _now_us, notify: MemoryStore(DEPLOYMENT, notify)


@contextmanager
def sqlite() -> Iterator[Open]:
    """A file, as in production; on a disk that forgets, so that no run waits for one."""
    shm = Path("/dev/shm")
    with TemporaryDirectory(dir=shm if shm.is_dir() else None) as folder:
        names = (f"sqlite:///{folder}/{number}.db" for number in range(10**9))
        yield lambda now_us, notify: _sql(next(names), now_us, notify)


@contextmanager
def postgresql() -> Iterator[Open]:
    with postgres.running() as server:
        yield lambda now_us, notify: _sql(server.url(server.create()), now_us, notify)


def _sql(url: str, now_us: Callable[[], int], notify: Callable[[], None]) -> Store:
    return open_store(url, now=now_us, notify=notify, deployment_factory=lambda: DEPLOYMENT)


TIERS = {"memory": memory, "sqlite": sqlite, "postgresql": postgresql}
