"""Back up the whole database while it is in use, and restore it.

A backup is in quarantine from its creation: a daemon on it knows less than the clouds do, and ends
no machine for being unknown until a person allows it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import Connection
from sqlalchemy import text as sql
from sqlalchemy.engine import URL

from spotd.base.lock import hold_database
from spotd.store.columns import metadata
from spotd.store.deployment import news
from spotd.store.engine import Database, file_of
from spotd.store.errors import StoreError
from spotd.store.schema import REVISIONS
from spotd.store.sql_store import SqlStore, open_store
from spotd.store.version import HEAD, check_known, revision_of, upgrade

Program = Callable[[str], str | None]  # the path of a program by its name

_CHUNK_BYTES = 1 << 20
LIMIT_S = 3600.0  # for a program of PostgreSQL's; a server that hangs would keep it for ever
# How a backup ends, of either kind: with its digest, which tells damage that no database notices.
_SEAL = b"\n-- spotd: sha256 of all that is above: "
_SEAL_BYTES = len(_SEAL) + 64 + len(b"\n")
_EMPTY = "is the backup of a database that held nothing"
_SQLITE = b"SQLite format 3\x00"
_POSTGRES = b"--\n-- PostgreSQL database dump"
_COMPLETE = b"-- PostgreSQL database dump complete"
_REVISION = b"COPY public.alembic_version (version_num) FROM stdin;\n"
_MARK = "\nUPDATE public.deployment SET quarantine = '{reason}' WHERE quarantine = '';\n"
_QUARANTINE = "0003"  # the first schema that knows of it; before, the reason waits for that one
_COLUMNS = sql(
    "SELECT tables.name || '.' || columns.name FROM sqlite_master AS tables, "
    "pragma_table_info(tables.name) AS columns WHERE tables.type = 'table'"
)
# What psql does after the backup's own lines, in the same transaction.
_FREE = "UPDATE public.duties SET holder = '', until_us = 0;\n"
_MARK_RESTORED = "UPDATE public.deployment SET quarantine = :'reason' WHERE quarantine = '';\n"
_MARK_OLDER = (
    "CREATE TABLE public.restored (reason text NOT NULL);\n"
    "INSERT INTO public.restored VALUES (:'reason');\n"
)


def back_up(url: str, file: Path, now_us: int, find: Program | None = None) -> None:
    """Copy the database at `url` into the new `file`, for its owner alone, and check the copy.

    Raises StoreError; then there is no such file.
    """
    at = datetime.fromtimestamp(now_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    reason = f"this database was restored from the backup of {at}"
    with _new(file):
        source = file_of(url)
        if source is not None:
            _copy_sqlite(source, file)
            _refuse_empty(f"sqlite:///{file}", f"{source} holds nothing yet: correct database.url")
            _mark(f"sqlite:///{file}", reason, now_us)
            _check(file)
        else:
            _refuse_empty(url, "the database holds nothing yet: correct database.url")
            _dump(url, file, reason, find or _find)
        with file.open("ab") as opened:
            opened.write(_seal(file, file.stat().st_size))
        _sync(file)


def restore(url: str, file: Path, now_us: int) -> str:
    """Restore the backup `file` as the database at `url`, where none may exist, upgrade its schema,
    and leave it in quarantine; returns the reason.

    Raises StoreError, and UserError if a daemon uses the database; nothing is half done then.
    """
    kind = _kind(file)
    size = _check_seal(file)
    target = file_of(url)
    if (kind == _SQLITE) != (target is not None):
        here, there = ("SQLite", "PostgreSQL") if kind == _SQLITE else ("PostgreSQL", "SQLite")
        raise StoreError(f"{file} is a backup of {here}, and database.url is {there}")
    if target is not None:
        return _restore_sqlite(target, file, size, now_us)
    return _restore_postgres(url, file, now_us)


@contextmanager
def _new(file: Path) -> Iterator[None]:
    """A new, empty file that is removed again if the block fails. Raises StoreError."""
    try:
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        raise StoreError(f"{file} exists already: name a new file") from None
    except OSError as error:
        raise StoreError(f"{file} cannot be written: {error.strerror}") from None
    try:
        yield
    except BaseException:
        file.unlink(missing_ok=True)
        raise


def _sync(file: Path) -> None:
    """Make the file and its name survive a power cut."""
    for path in (file, file.parent):
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def _kind(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            head = opened.read(max(len(_SQLITE), len(_POSTGRES)))
    except OSError as error:
        raise StoreError(f"{file} cannot be read: {error.strerror}") from None
    for kind in (_SQLITE, _POSTGRES):
        if head.startswith(kind):
            return kind
    raise StoreError(f"{file} is not a backup that `spotctl db backup` made")


def _seal(file: Path, size: int) -> bytes:
    """The bytes that follow the first `size` bytes of a backup."""
    digest, left = hashlib.sha256(), size
    with file.open("rb") as opened:
        while left and (chunk := opened.read(min(left, _CHUNK_BYTES))):
            digest.update(chunk)
            left -= len(chunk)
    return _SEAL + digest.hexdigest().encode() + b"\n"


def _check_seal(file: Path) -> int:
    """The size of a backup without its seal.

    One of an earlier spotd, or one that was changed, has no seal. Raises StoreError.
    """
    whole = file.stat().st_size
    size = max(whole - _SEAL_BYTES, 0)
    with file.open("rb") as opened:
        opened.seek(size)
        seal = opened.read()
    if not seal.startswith(_SEAL):
        return whole
    if seal != _seal(file, size):
        raise StoreError(f"{file} is damaged: its digest differs; take another backup")
    return size


# --- SQLite


def _copy_sqlite(source: Path, file: Path) -> None:
    """Copy one transaction's view; writers do not wait."""
    if not source.exists():  # SQLite would make it
        raise StoreError(f"there is no database {source}: correct database.url")
    try:
        with closing(sqlite3.connect(source, timeout=30.0)) as connection:
            connection.execute("VACUUM INTO ?", [str(file)])
    except sqlite3.Error as error:
        raise StoreError(f"the database {source} cannot be copied: {error}") from None


def _check(file: Path) -> None:
    """Check that the whole database can be read, and make it a single file. Raises StoreError."""
    try:
        with closing(sqlite3.connect(file)) as connection:
            [[problem], *_] = connection.execute("PRAGMA integrity_check").fetchall()
            connection.execute("PRAGMA journal_mode=DELETE")
    except (sqlite3.Error, UnicodeDecodeError) as error:  # what it names may be no text
        problem = str(error)
    if problem != "ok":
        raise StoreError(f"{file} is damaged: {problem}")


def _missing_columns(conn: Connection) -> list[str]:
    known = set(conn.execute(_COLUMNS).scalars())
    ours = {f"{table.name}.{column.name}" for table in metadata.sorted_tables for column in table.c}
    return sorted(ours - known)


def _check_columns(url: str, file: Path) -> None:
    """Check that the database made of `file` has every table and column. Raises StoreError."""
    database = Database(url)
    try:
        missing = database.read(_missing_columns)
    finally:
        database.close()
    if missing:
        raise StoreError(f"{file} is damaged: it lacks {' and '.join(missing)}")


def _restore_sqlite(target: Path, file: Path, size: int, now_us: int) -> str:
    draft = target.with_name(f".{target.name}.restored")
    with closing(hold_database(target)):
        for path in (target, *(target.with_name(target.name + end) for end in ("-wal", "-shm"))):
            if path.exists():
                raise StoreError(f"{path} exists: move it away first, nothing is overwritten")
        draft.unlink(missing_ok=True)  # of a restore that was killed
        with _new(draft):
            try:
                shutil.copyfile(file, draft)
                os.truncate(draft, size)
            except OSError as error:
                raise StoreError(f"{file} cannot be copied: {error.strerror}") from None
            _check(draft)
            _refuse_empty(f"sqlite:///{draft}", f"{file} {_EMPTY}")
            upgrade(f"sqlite:///{draft}")
            _check_columns(f"sqlite:///{draft}", file)
            reason = _mark(f"sqlite:///{draft}", _reason(file), now_us)
            _check(draft)
            _sync(draft)
            draft.rename(target)
            _sync(target)
    return reason


# --- PostgreSQL


def _find(name: str) -> str | None:
    """A PostgreSQL client program, the newest if a distribution has several."""
    places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(places[-1]) if places else None)


def _run(find: Program, name: str, url: str, *options: str, stdin: str = "") -> None:
    """Run it with `stdin`. The password is passed in the environment: arguments are public."""
    program = find(name)
    if program is None:
        raise StoreError(f"{name} is missing: apt-get install postgresql-client")
    database = Database(url)
    database.close()
    parts: URL = database.url.set(drivername="postgresql")._replace(password=None)
    secret = {"PGPASSWORD": str(database.url.password)} if database.url.password else {}
    try:
        done = subprocess.run(
            [program, f"--dbname={parts.render_as_string(hide_password=False)}", *options],
            env={**os.environ, "PGCONNECT_TIMEOUT": "10", **secret},
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        text = f"{name} of {database.place} took longer than {LIMIT_S:.0f} s: does the server hang?"
        raise StoreError(text) from None
    if done.returncode:
        message = " ".join(done.stderr.split())[-500:]
        raise StoreError(f"{name} of {database.place} failed: {message}")


def _dump(url: str, file: Path, reason: str, find: Program) -> None:
    _run(find, "pg_dump", url, "--no-owner", "--no-privileges", f"--file={file}")
    with file.open("r+b") as opened:
        opened.seek(max(file.stat().st_size - 4096, 0))
        if _COMPLETE not in opened.read():
            raise StoreError(f"pg_dump left {file} incomplete: is the disk full?")
        if _revision(url) == HEAD:
            opened.write(_MARK.format(reason=reason).encode())


def _restore_postgres(url: str, file: Path, now_us: int) -> str:
    """Restore with the quarantine first: a kill before the upgrade leaves it in quarantine."""
    if _revision(url) is not None:
        raise StoreError(
            "the database of database.url is not empty, and nothing is overwritten: create another "
            "with createdb, and name that one"
        )
    revision = _dumped_revision(file)
    check_known(str(file), revision)
    knows = REVISIONS.index(revision) >= REVISIONS.index(_QUARANTINE)
    reason = _reason(file).encode("utf-8", "replace").decode()
    settings = ("--set=ON_ERROR_STOP=1", "--single-transaction", "--quiet", "--no-psqlrc")
    inputs = (f"--set=reason={reason}", f"--file={file}", "--file=-")
    stdin = _FREE + (_MARK_RESTORED if knows else _MARK_OLDER)
    _run(_find, "psql", url, *settings, *inputs, stdin=stdin)
    upgrade(url)
    with closing(_open(url, now_us)) as store:
        quarantine = store.deployment.quarantine()
        event = news("", quarantine)
        if event is not None:
            store.events.add("", event, now_us)
        return quarantine


def _dumped_revision(file: Path) -> str:
    """The schema revision of a pg_dump file. Raises StoreError, also if its end is missing."""
    revisions: list[str] = []
    with file.open("rb") as opened:
        if any(line == _REVISION for line in opened):
            for line in opened:
                if line == b"\\.\n":
                    break
                revisions.append(line.decode("utf-8", "replace").rstrip("\n"))
        opened.seek(max(file.stat().st_size - 4096, 0))
        if _COMPLETE not in opened.read():
            raise StoreError(f"{file} is damaged: its end is missing; take another backup")
    if len(revisions) != 1:
        raise StoreError(
            f"{file} names {' and '.join(revisions)} as its schema"
            if revisions
            else f"{file} {_EMPTY}"
        )
    return revisions[0]


# --- both


def _revision(url: str) -> str | None:
    database = Database(url)
    try:
        return database.read(revision_of)
    finally:
        database.close()


def _refuse_empty(url: str, text: str) -> None:
    """Refuse an empty backup now, not when it is needed. Raises StoreError."""
    if _revision(url) is None:
        raise StoreError(text)


def _reason(file: Path) -> str:
    return f"this database was restored from {file.name}"


def _mark(url: str, reason: str, now_us: int) -> str:
    """Release all leases and set the quarantine, unless it has another schema; returns the reason
    in force."""
    if _revision(url) != HEAD:
        return ""
    with closing(_open(url, now_us)) as store:
        store.deployment.set_quarantine(reason, now_us)
        store.leases.release_all()
        return store.deployment.quarantine()


def _open(url: str, now_us: int) -> SqlStore:
    return open_store(url, now=lambda: now_us, notify=lambda: None, deployment_factory=str)
