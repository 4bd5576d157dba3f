"""What reads bytes from outside on the control box, beside its API: the answers of whoever takes
the alerts, and the backups of which a database is made."""

from __future__ import annotations

import contextlib
import math
import socket
import sqlite3
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from unittest.mock import patch

import urllib3
from urllib3.connection import HTTPConnection

from spotd.alert_sinks import webhook
from spotd.alert_sinks.base import Alert, AlertSinkError
from spotd.alert_sinks.slack import RETRY_AFTER_CAP_S, SlackSink
from spotd.domain.events import Event
from spotd.store.backup import back_up, restore
from spotd.store.codec import CodecError
from spotd.store.errors import StoreError
from tests.fixtures.memory import MEMORY
from tests.fixtures.slack import SECRET
from tests.fuzz import BREAK
from tests.spotd.store.build import NOW, placed
from tests.spotd.store.conftest import make

ALERT = Alert(1, NOW, "", "", Event("lost", "m1 is gone"))
WORDS = 300  # of an error, whatever was said


def _pool(said: Iterator[bytes]) -> urllib3.HTTPConnectionPool:
    """Connections at whose other end an answer lies ready, of any bytes, and no more will come."""

    class Connection(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            ours, self.theirs = socket.socketpair()
            self.theirs.sendall(next(said))
            self.theirs.shutdown(socket.SHUT_WR)
            return ours

        def close(self) -> None:
            super().close()
            if theirs := self.__dict__.get("theirs"):
                theirs.close()

    pool = urllib3.HTTPConnectionPool("127.0.0.1", 1, retries=False, timeout=5.0)
    pool.ConnectionCls = Connection
    return pool


def send_alert(data: bytes) -> None:
    """What Slack's end of a connection says, twice where the first answer asks for it: the alert
    was taken, or a RouteError that names no secret and waits for a time that there is."""
    first, _, second = data.partition(BREAK)
    said = iter((first, second))
    route = SlackSink(f"http://127.0.0.1:1{SECRET}")
    with patch.object(webhook, "_pool", lambda _url: _pool(said)):
        try:
            route.send([ALERT])
        except AlertSinkError as error:
            _check_refusal(str(error), error.retry_after_s)


def _check_refusal(text: str, retry_after_s: float) -> None:
    assert 0 < len(text) < WORDS
    assert SECRET not in text
    assert math.isfinite(retry_after_s)
    assert 0 <= retry_after_s <= RETRY_AFTER_CAP_S


@cache
def _backup() -> bytes:
    """Of a database that has a job with a machine."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        url, file = f"sqlite:///{folder}/spotd.db", Path(folder, "backup")
        with contextlib.closing(make(url)) as store:
            placed(store)
        back_up(url, file, NOW)
        return file.read_bytes()


def _damaged(whole: bytes, pieces: bytes) -> bytes:
    """`whole` with each of the pieces written over it: three bytes of where, one of how long, and
    what. One of no bytes is the end of it all."""
    found = bytearray(whole)
    while pieces:
        at, count, pieces = int.from_bytes(pieces[:3]), pieces[3:4], pieces[4:]
        at, length = at % (len(found) or 1), int.from_bytes(count)
        found[at : at + length if length else None] = pieces[:length]
        pieces = pieces[length:]
    return bytes(found)


def _changed(file: Path, script: str) -> None:
    """Run what does not leave the database, and ends."""
    denied = {sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_FUNCTION}
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.set_authorizer(lambda action, *_: int(action in denied))
        connection.set_progress_handler(lambda: 1, 100_000)
        with contextlib.suppress(sqlite3.Error, sqlite3.Warning, ValueError):
            connection.executescript(script)


def restore_backup(data: bytes) -> None:
    """A file that is said to be a backup, pieces that one is damaged with, or statements that
    changed what an older spotd made: a database in quarantine; or a StoreError, and nothing."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        file = Path(folder, "backup")
        if data.startswith((b"SQLite", b"--")):
            file.write_bytes(data)
            _restore(file)
        elif data.startswith(b"SQL:"):
            file.write_bytes(_without_seal())
            _changed(file, data[4:].decode("utf-8", "replace"))
            _restore(file)
        else:
            file.write_bytes(_damaged(_without_seal(), data))
            _restore(file)
            file.write_bytes(_damaged(_backup(), data))
            if _restore(file):  # it was the seal itself, if anything
                size, found = len(_without_seal()), file.read_bytes()
                assert found[:size] == _without_seal() or found[size:] != _backup()[size:]


def _without_seal() -> bytes:
    """As an older spotd made it."""
    return _backup()[: len(_backup()) // 4096 * 4096]


def _restore(file: Path) -> bool:
    """Whether it was a backup."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        url = f"sqlite:///{folder}/spotd.db"
        try:
            reason = restore(url, file, NOW)
        except StoreError as error:
            told = str(error)
            assert told
            assert [path.name for path in Path(folder).iterdir()] in ([], ["spotd.db.lock"])
            return False
        assert reason
        with contextlib.closing(make(url)) as store:
            assert store.deployment.quarantine() == reason
            # Without a seal nobody knows what the rows were.
            with contextlib.suppress(StoreError, CodecError):
                store.load_views([job.id for job in store.jobs.rows()], NOW)
        return True
