"""The tables of a MemoryStore for one caller, who may hold a lease."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from spotd.store.errors import StoreUnavailableError
from spotd.store.leases import LeaseFence
from tests.sim.memory import duties
from tests.sim.memory.tables import Tables
from tests.sim.memory.transaction import Transaction

P = ParamSpec("P")
T = TypeVar("T")


class Database:
    """The tables. While `away` is true they cannot be read or written."""

    def __init__(self, tables: Tables) -> None:
        self.away = False
        self.tables = tables


class MemorySession:
    """`spotd.store.session.Session` on a `Database`."""

    def __init__(
        self, database: Database, notify: Callable[[], None], fence: LeaseFence | None = None
    ) -> None:
        self.database = database
        self.notify = notify
        self.fence = fence

    def here(self) -> Tables:
        """The tables. Raises StoreUnavailableError while the database is away."""
        if self.database.away:
            raise StoreUnavailableError("the database does not answer: it is away")
        return self.database.tables

    def write(
        self, work: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """`work` in one transaction: all of it, or nothing when it raises."""
        if self.fence is not None:
            duties.hold(self.here(), self.fence)
        tx = Transaction(self.here())
        try:
            result = work(tx, *args, **kwargs)
            tx.flush()
        except BaseException:
            tx.undo()
            raise
        if tx.due:
            self.notify()
        return result
