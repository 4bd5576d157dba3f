"""A repository's way to the database: transactions for writes, snapshots for reads.

A method of a repository takes the connection or the transaction as its first argument; its
decorator opens one, and callers call the method without it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection

from spotd.store.engine import Database
from spotd.store.transaction import Transaction

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R", bound="Repository")


class Session:
    """One database for one caller, who may hold a lease.

    `fence` runs first in the transaction of every write, and raises LostLeaseError if another
    daemon now holds the caller's lease. `notify` is called after each transaction that made a job
    due, on the caller's thread.
    """

    def __init__(
        self,
        database: Database,
        notify: Callable[[], None],
        fence: Callable[[Connection], None] | None = None,
    ) -> None:
        self.database = database
        self.notify = notify
        self.fence = fence

    def write(self, work: Callable[[Transaction], T], *, urgent: bool = False) -> T:
        """Run `work` in one transaction, and flush the changes that it collected.

        An `urgent` one does not wait in the queue for SQLite's only writer. Raises LostLeaseError,
        writing nothing, as `fence` does; and as `Database.write`.
        """
        due = False

        def run(conn: Connection) -> T:
            nonlocal due
            tx = Transaction(conn)
            if self.fence is not None:
                self.fence(conn)
            result = work(tx)
            tx.flush()
            due = tx.due
            return result

        result = self.database.write(run, ahead=urgent)
        if due:
            self.notify()
        return result


class Repository:
    """The table or tables of one noun, their queries and their writes."""

    def __init__(self, session: Session) -> None:
        self.session = session


def read(
    method: Callable[Concatenate[R, Connection, P], T],
) -> Callable[Concatenate[R, P], T]:
    """Run the method in one read-only snapshot."""

    @wraps(method)
    def call(self: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.session.database.read(lambda conn: method(self, conn, *args, **kwargs))

    return call


def read_one(
    method: Callable[Concatenate[R, Connection, P], T],
) -> Callable[Concatenate[R, P], T]:
    """Run the method, which is a single statement, without the round trips of a transaction."""

    @wraps(method)
    def call(self: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.session.database.read_one(lambda conn: method(self, conn, *args, **kwargs))

    return call


def write(
    method: Callable[Concatenate[R, Transaction, P], T],
) -> Callable[Concatenate[R, P], T]:
    """Run the method in one transaction."""

    @wraps(method)
    def call(self: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.session.write(lambda tx: method(self, tx, *args, **kwargs))

    return call


def write_urgent(
    method: Callable[Concatenate[R, Transaction, P], T],
) -> Callable[Concatenate[R, P], T]:
    """Run the method in one transaction that does not wait in line for SQLite's only writer."""

    @wraps(method)
    def call(self: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.session.write(lambda tx: method(self, tx, *args, **kwargs), urgent=True)

    return call


def write_unfenced(
    method: Callable[Concatenate[R, Connection, P], T],
) -> Callable[Concatenate[R, P], T]:
    """Run the method in one transaction, whoever holds a lease: for leases, keys and releases."""

    @wraps(method)
    def call(self: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.session.database.write(lambda conn: method(self, conn, *args, **kwargs))

    return call


def write_unfenced_urgent(
    method: Callable[Concatenate[R, Connection, P], T],
) -> Callable[Concatenate[R, P], T]:
    """As `write_unfenced`, without waiting in line for SQLite's only writer."""

    @wraps(method)
    def call(self: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.session.database.write(
            lambda conn: method(self, conn, *args, **kwargs), ahead=True
        )

    return call
