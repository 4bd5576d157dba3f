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

USER = "spotd"
START_S = 30.0


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
