"""Connections to SQLite and PostgreSQL, and clear messages for database errors.

`Database.write(work)` runs `work` in one transaction, `read(work)` in one snapshot. On SQLite all
writers of a process share one connection and begin with BEGIN IMMEDIATE, so that none fails
half-way for a lock; readers have their own and never wait. On PostgreSQL no statement and no idle
transaction may hold a lock for long, and TCP notices a dead peer.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, PoolProxiedConnection, create_engine, event
from sqlalchemy import text as sql
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import QueuePool

from spotd.base.extras import install_command
from spotd.store.errors import StoreError, StoreUnavailableError
from spotd.store.integrity import ADVICE

T = TypeVar("T")
Work = Callable[[Connection], T]

EXAMPLES = "sqlite:////var/lib/spotd/spotd.db or postgresql://user@host/spotd"
LINE_S = 30.0  # for a turn to write
TRIES = 3  # of a transaction that lost to another one
_NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph"})
_PG_OPTIONS = (
    "-c lock_timeout=2000 -c statement_timeout=5000 -c idle_in_transaction_session_timeout=10000"
)
STUCK_S = 10.0  # as long as a transaction may be idle
_LOCKED = "55P03"  # a lock was not had in time
_END_STUCK = sql(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = current_user "
    "AND datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL "
    "AND state IN ('active', 'idle in transaction') AND wait_event = 'ClientRead' "
    "AND state_change < clock_timestamp() - make_interval(secs => :seconds)"
)


class BrokenRuleError(StoreError):
    """A constraint of the schema refused a row."""


class Database:
    """One database, by URL. Raises StoreError for an invalid URL."""

    def __init__(self, url: str) -> None:
        self.url = _parse(url)
        self.place = self.url.render_as_string(hide_password=True)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        try:
            made = _sqlite(self.url) if self.is_sqlite else _postgres(self.url)
        except (ArgumentError, TypeError) as error:
            text = f"database.url {self.place} is not usable: {error}; try {EXAMPLES}"
            raise StoreError(text) from None
        except ModuleNotFoundError as error:
            text = f"database.url {self.place} needs {error.name}: {install_command('postgres')}"
            raise StoreError(text) from None
        self._writer, self._reader, self._one_reader = made
        self._line = threading.Lock()

    def write(self, work: Work[T], *, ahead: bool = False) -> T:
        """Run `work` in one transaction, again if it lost against another one.

        SQLite has one writer: most calls wait in a queue for it. Calls with `ahead` skip the queue;
        they are from the few threads on which everything else depends. Raises BrokenRuleError,
        StoreUnavailableError, or another StoreError; nothing was written then, except when the
        connection was lost in the commit.
        """
        with nullcontext() if ahead or not self.is_sqlite else self._head_of_line():
            return self._write(work)

    @contextmanager
    def _head_of_line(self) -> Iterator[None]:
        if not self._line.acquire(timeout=LINE_S):
            text = f"{self.place} is too busy: no turn within {LINE_S:.0f} s"
            raise StoreUnavailableError(f"{text}; check the disk with `df` and `iostat`")
        try:
            yield
        finally:
            self._line.release()

    def _write(self, work: Work[T]) -> T:
        for left in reversed(range(TRIES)):
            try:
                with self._writer.begin() as conn:
                    return work(conn)
            except DBAPIError as error:
                if left and _lost_to_another(error):
                    continue
                if _state(error) == _LOCKED:
                    self._end_stuck()
                raise _translated(error, self.place) from error
            except PoolTimeoutError as error:
                raise StoreUnavailableError(f"{self.place} is too busy: {error}") from error
        raise AssertionError("the last try returns or raises")

    def _end_stuck(self) -> None:
        """End sessions of this user that hang in a transaction whose locks others wait for.

        A client that froze in the middle of a statement leaves its session "active", and one that
        froze after a Close or a Flush message leaves it "idle in transaction" without the timer of
        `idle_in_transaction_session_timeout` (seen with PostgreSQL 15). No time limit of PostgreSQL
        before 17 ends either.
        """
        with suppress(DBAPIError, PoolTimeoutError), self._writer.begin() as conn:
            conn.execute(_END_STUCK, {"seconds": STUCK_S})

    def read(self, work: Work[T]) -> T:
        """Run `work` in one read-only snapshot. Raises like `write`."""
        return self._read(self._reader, work)

    def read_one(self, work: Work[T]) -> T:
        """Run `work`, a single reading statement: a snapshot without the two round trips that begin
        and end a transaction. Raises like `write`."""
        return self._read(self._one_reader, work)

    def _read(self, engine: Engine, work: Work[T]) -> T:
        try:
            with engine.begin() as conn:
                return work(conn)
        except DBAPIError as error:
            raise _translated(error, self.place) from error
        except PoolTimeoutError as error:
            raise StoreUnavailableError(f"{self.place} is too busy: {error}") from error

    def close(self) -> None:
        """Close every connection."""
        self._reader.dispose()
        self._writer.dispose()


def file_of(url: str) -> Path | None:
    """The database file of a SQLite URL; None for a server or an in-memory database. Raises
    StoreError."""
    parsed = _parse(url)
    if parsed.get_backend_name() != "sqlite" or parsed.database in (None, "", ":memory:"):
        return None
    return Path(str(parsed.database)).absolute()


def check_url(url: str) -> None:
    """Check a database URL without creating a file or contacting a server. Raises StoreError."""
    parsed = _parse(url)
    if parsed.get_backend_name() != "sqlite":
        Database(url).close()
    elif parsed.database not in (None, "", ":memory:"):
        path = Path(parsed.database).absolute()
        _check_folder(path.parent)
        if path.exists():
            _open(path, os.O_RDWR)
        elif not os.access(path.parent, os.W_OK):
            raise StoreError(f"the folder {path.parent} of the database cannot be written")


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, NoSuchModuleError, ValueError):
        # The text may hold a password: it is not repeated.
        raise StoreError(f"database.url is not a database URL; try {EXAMPLES}") from None
    if backend not in ("sqlite", "postgresql"):
        text = f"database.url names {backend}; spotd knows sqlite and postgresql: try {EXAMPLES}"
        raise StoreError(text)
    if backend == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
        # libpq takes it there as well, where nobody would hide it.
        for password in parsed.normalized_query.get("password", ()):
            parsed = parsed.set(password=password)
        parsed = parsed.difference_update_query(["password"])
    return parsed


def _sqlite(url: URL) -> tuple[Engine, Engine, Engine]:
    if url.database in (None, "", ":memory:"):
        # One connection holds the whole database: readers and writers share it one at a time.
        size = {"poolclass": QueuePool, "pool_size": 1, "max_overflow": 0}
        only = create_engine(url, connect_args=_SHARED, **size)
        _on_connect(only, "BEGIN IMMEDIATE", writable=True)
        return only, only, only
    _check_path(Path(url.database))
    writer = create_engine(url, pool_size=1, max_overflow=0, connect_args=_SHARED)
    reader = create_engine(url, pool_size=2, max_overflow=6, connect_args=_SHARED)
    _on_connect(writer, "BEGIN IMMEDIATE", writable=True)
    _on_connect(reader, "BEGIN", writable=False)
    return writer, reader, reader


_SHARED: dict[str, Any] = {"check_same_thread": False, "timeout": 5.0}


def _on_connect(engine: Engine, begin: str, *, writable: bool) -> None:
    @event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # we begin transactions ourselves
        connection.execute("PRAGMA busy_timeout=5000")
        if writable:
            connection.execute("PRAGMA journal_mode=WAL")
        # FULL: a commit that we acted on must survive a power cut, or its machine would leak.
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA temp_store=MEMORY")
        if not writable:
            connection.execute("PRAGMA query_only=ON")

    # Not an event, which every statement of the engine would pay for.
    def _begin(connection: PoolProxiedConnection) -> None:
        connection.cursor().execute(begin)

    engine.dialect.do_begin = _begin  # type: ignore[assignment]


def _check_path(path: Path) -> None:
    """Check for the usual mistakes, and create the file for its owner alone."""
    _check_folder(path.absolute().parent)
    _open(path, os.O_RDWR | os.O_CREAT)


def _open(path: Path, flags: int) -> None:
    try:
        os.close(os.open(path, flags, 0o600))
    except OSError as error:
        text = f"the database {path} cannot be opened for writing: {error.strerror}"
        raise StoreUnavailableError(f"{text}; check its owner, its mode and the disk") from None


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        text = f"the folder {folder} of the database does not exist: create it, or set database.url"
        raise StoreError(text)
    if _file_system(folder) in _NETWORK_FILE_SYSTEMS:
        raise StoreError(
            f"{folder} is on a network file system, where SQLite loses data: "
            "put the database on a local disk, or use PostgreSQL"
        )


def _file_system(folder: Path) -> str:
    """The type of the file system under `folder`, if /proc shows it."""
    mounts = Path("/proc/self/mounts")
    if not mounts.exists():
        return ""
    result, longest = "", 0
    for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
        _, point, kind, *_ = line.split(" ")
        if folder.resolve().is_relative_to(point) and len(point) >= longest:
            result, longest = kind, len(point)
    return result


def _postgres(url: URL) -> tuple[Engine, Engine, Engine]:
    args: dict[str, Any] = {
        "connect_timeout": 5,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 15_000,
        "application_name": "spotd",
        "options": _PG_OPTIONS,
    }
    args = {name: value for name, value in args.items() if name not in url.query}
    writer = create_engine(
        url, pool_size=5, max_overflow=10, pool_timeout=10, pool_pre_ping=True, connect_args=args
    )
    # A view is several statements: they must see the same moment.
    reader = writer.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    return writer, reader, writer.execution_options(isolation_level="AUTOCOMMIT")


def _lost_to_another(error: DBAPIError) -> bool:
    return _state(error) in ("40001", "40P01")


def _state(error: DBAPIError) -> str:
    """PostgreSQL's error code; "" on SQLite."""
    return getattr(error.orig, "sqlstate", None) or ""


# Beginnings of SQLite's error names and of PostgreSQL's states, and what to tell the user.
_CAUSES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("SQLITE_FULL", "53100"), "the disk under it is full: free some space"),
    (("SQLITE_IOERR",), "its disk fails or is full: check `df` and `dmesg`"),
    (("SQLITE_READONLY", "25006"), "it is read-only: check its mode, its owner and the mount"),
    (("SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH"), "it cannot be opened: check its owner"),
    (("SQLITE_BUSY", "SQLITE_LOCKED", "55P03"), "another process holds it locked: end that one"),
    (("57014",), "a statement took longer than 5 s: is the server overloaded?"),
    (("42501",), "the user of database.url lacks a permission"),
)
_BROKEN = {
    ("SQLITE_CORRUPT",): f"it is damaged: {ADVICE}",
    ("SQLITE_NOTADB",): "the file is not a database: correct database.url",
}

_NO_TEXT = "Could not decode to UTF-8"  # from Python's own sqlite3, which has no code for it


def _translated(error: DBAPIError, place: str) -> StoreError:
    orig = error.orig
    code = getattr(orig, "sqlite_errorname", None) or getattr(orig, "sqlstate", None) or ""
    if isinstance(error, IntegrityError):
        return BrokenRuleError(f"the database {place} refused a row: {orig}")
    for known, text in _BROKEN.items():
        if code.startswith(known):
            return StoreError(f"the database {place} cannot be used: {text} ({orig})")
    for beginnings, text in _CAUSES:
        if code.startswith(beginnings):
            return StoreUnavailableError(f"the database {place} cannot be used now: {text}")
    words = " ".join(str(orig).split())
    if "FATAL: " in words and not code:
        refusal = words.split("FATAL: ", 1)[1].strip()
        text = f"the server of {place} refuses the connection: {refusal}; correct database.url"
        return StoreUnavailableError(text)
    if isinstance(orig, sqlite3.OperationalError) and _NO_TEXT in words:
        return StoreError(f"the database {place} cannot be used: it is damaged: {ADVICE} ({words})")
    if error.connection_invalidated or not code or code.startswith(("08", "57P", "53")):
        text = f"the database {place} does not answer: {words}; is the server up?"
        return StoreUnavailableError(text)
    return StoreError(f"the database {place} refused a statement: {words}")
