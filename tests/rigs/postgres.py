"""A throw-away PostgreSQL server: its own folder, a unix socket, no durability, gone with the test.

Missing binaries are a failure, never a skip: the store promises to work on both databases. The
server refuses to run as root, so root runs it as `nobody`.
"""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg

Connection = psycopg.Connection[tuple[object, ...]]
USER = "spotd"
START_S = 30.0
_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
_SEQUENCES = "SELECT sequencename FROM pg_sequences WHERE schemaname = 'public' ORDER BY 1"
_SHAPE = """
    SELECT c.relname, c.relkind, a.attname, a.attnum, a.atttypid, a.attnotnull, a.attidentity,
        pg_get_expr(d.adbin, d.adrelid), pg_get_indexdef(i.indexrelid), i.indisvalid
    FROM pg_class c
    LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    LEFT JOIN pg_index i ON i.indexrelid = c.oid
    WHERE c.relnamespace = 'public'::regnamespace
    UNION ALL
    SELECT conname, contype, pg_get_constraintdef(oid), NULL, NULL, NULL, NULL, NULL, NULL,
        convalidated
    FROM pg_constraint WHERE connamespace = 'public'::regnamespace
    UNION ALL
    SELECT tgname, tgenabled, pg_get_triggerdef(oid), NULL, NULL, NULL, NULL, NULL, NULL, NULL
    FROM pg_trigger WHERE NOT tgisinternal
    ORDER BY 1, 2, 3
"""


def binary(name: str) -> str:
    """The path of one of PostgreSQL's programs, wherever the distribution keeps it."""
    found = shutil.which(name)
    places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    if found is None and places:
        found = str(places[-1])
    if found is None:
        raise RuntimeError(f"PostgreSQL's {name} is missing: apt-get install postgresql")
    return found


def _as_server_user() -> list[str]:
    """A prefix that drops root, and ends the server when the test process dies."""
    drop = ["--reuid", "nobody", "--regid", "nogroup", "--clear-groups"]
    return ["setpriv", "--pdeathsig", "INT", *(drop if os.geteuid() == 0 else [])]


class Postgres:
    """A running server; `create` makes databases. With `address` it listens there, too, started by
    the command `within`."""

    def __init__(
        self,
        folder: Path,
        address: str = "",
        within: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self._address = address
        self._within = within
        self._settings = settings or {}
        self._numbers = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._spare: dict[str, list[str]] = {}
        self._pristine: dict[str, Pristine] = {}

    def init(self) -> None:
        """Create the cluster, without syncing to disk."""
        where = ["-D", str(self.folder / "data"), "-A", "trust", "-U", USER]
        command = [binary("initdb"), *where, "--no-sync", "--locale=C", "-E", "UTF8"]
        done = subprocess.run(
            [*_as_server_user(), *command], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"initdb failed: {done.stderr}")
        if self._address:
            with (self.folder / "data" / "pg_hba.conf").open("a") as rules:
                rules.write("host all all samenet trust\n")

    def start(self) -> None:
        """Start the server and wait until it answers."""
        settings = {
            "listen_addresses": self._address,
            "unix_socket_directories": str(self.folder),
            "fsync": "off",
            "shared_buffers": "32MB",
            "max_connections": "60",
            "deadlock_timeout": "50ms",
            **self._settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [binary("postgres"), "-D", str(self.folder / "data"), *options]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._within, *_as_server_user(), *command],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        deadline_s = time.monotonic() + START_S
        while True:
            try:
                psycopg.connect(self._dsn("postgres")).close()
            except psycopg.OperationalError as error:
                if time.monotonic() > deadline_s or self._process.poll() is not None:
                    said = (self.folder / "log").read_text()
                    raise RuntimeError(f"PostgreSQL did not start: {error}\n{said}") from None
                time.sleep(0.02)
            else:
                return

    def stop(self) -> None:
        """End the server at once, sessions and all."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)  # no checkpoint: it is thrown away
            self._process.wait(timeout=START_S)
            self._process = None

    def _dsn(self, name: str) -> str:
        return f"host={self.folder} user={USER} dbname={name}"

    def url(self, name: str) -> str:
        """The SQLAlchemy URL of a database on this server."""
        return f"postgresql://{USER}@/{name}?host={self.folder}"

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """One administrative statement; its rows, if it has any."""
        with psycopg.connect(self._dsn(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def create(self, template: str = "template0") -> str:
        """A fresh database; its name."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    @contextmanager
    def lent(self, template: str) -> Iterator[str]:
        """The name of a database that is as its template for the length of the block: one that
        was lent before, if there is one. To copy the template's files is most of what a test's
        database costs."""
        if template not in self._pristine:
            with psycopg.connect(self._dsn(template)) as connection:
                self._pristine[template] = Pristine(connection)
        spare = self._spare.setdefault(template, [])
        name = spare.pop() if spare else self.create(template)
        yield name
        self.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        )
        with psycopg.connect(self._dsn(name)) as connection:
            as_before = self._pristine[template].restore(connection)
        if as_before:
            spare.append(name)


class Pristine:
    """A database's shape and rows, and the way back to them."""

    def __init__(self, connection: Connection) -> None:
        self._shape = _shape(connection)
        self._tables = [str(name) for [name] in connection.execute(_TABLES)]
        self._sequences = [str(name) for [name] in connection.execute(_SEQUENCES)]
        self._rows = {
            name: rows
            for name in self._tables
            if (rows := connection.execute(f"SELECT * FROM {name}".encode()).fetchall())
        }

    def restore(self, connection: Connection) -> bool:
        """Bring the rows back; False if its shape is another one, which nothing was done about."""
        if _shape(connection) != self._shape:
            return False
        words = ["SET session_replication_role = replica"]  # in any order, whatever refers to what
        words += [f"DELETE FROM {name}" for name in self._tables]
        words += [f"ALTER SEQUENCE {name} RESTART" for name in self._sequences]
        connection.execute(";".join(words).encode())
        for name, rows in self._rows.items():
            places = ", ".join(["%s"] * len(rows[0]))
            for row in rows:
                connection.execute(f"INSERT INTO {name} VALUES ({places})".encode(), row)
        return True


def _shape(connection: Connection) -> object:
    return connection.execute(_SHAPE).fetchall()


@contextmanager
def running(
    address: str = "", within: Sequence[str] = (), settings: Mapping[str, str] | None = None
) -> Iterator[Postgres]:
    """A server for the length of the block, with more settings than those of all tests."""
    folder = Path(tempfile.mkdtemp(prefix="spotd-pg-", dir="/tmp"))
    try:
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        server = Postgres(folder, address, within, settings)
        server.init()
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)
