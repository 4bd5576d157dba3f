"""The database fails: every time in plain words, and nothing that was acknowledged is lost."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

from spotd.domain.events import Event
from spotd.domain.plan import ChangeJob
from spotd.domain.units import S
from spotd.store.commit import CommitStatus
from spotd.store.engine import Database
from spotd.store.errors import StoreError, StoreUnavailableError
from spotd.store.sql_store import SqlStore
from tests.fixtures import postgres
from tests.fixtures.waiting import LIMIT_S
from tests.spotd.store.build import NOW, instance, node, opening, placed, plan, said, submit, view
from tests.spotd.store.conftest import make


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("not a url", "not a database URL; try sqlite:///"),
        ("postgres//missing-colon", "not a database URL"),
        ("mysql://user:hunter2@host/db", "spotd knows sqlite and postgresql"),
        ("nosuch://x", "names nosuch"),
        ("sqlite:////no/such/folder/spotd.db", "/no/such/folder of the database does not exist"),
        ("sqlite:////proc/spotd.db", "cannot be opened for writing"),
    ],
)
def test_a_wrong_url_is_explained(url: str, words: str) -> None:
    with pytest.raises(StoreError, match=words) as caught:
        make(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["postgresql://u:hunter2@127.0.0.1:9/db", "postgresql://127.0.0.1:9/db?password=hunter2"]
)
def test_a_password_is_used_and_never_told(url: str) -> None:
    """Wherever in the URL it stands: what goes wrong is told to whoever may look."""
    database = Database(url)
    assert database.url.password == "hunter2"
    with pytest.raises(StoreUnavailableError) as caught:
        database.read(lambda _: None)
    assert "127.0.0.1:9" in str(caught.value)
    assert "hunter2" not in f"{caught.value} {database.place}"
    database.close()


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("dear diary " * 1000)
    with pytest.raises(StoreError, match=r"not a database.*database\.url"):
        make(f"sqlite:///{tmp_path}/notes.txt")


def test_a_row_that_is_no_text_is_damage_and_no_server_that_is_down(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "spotd.db")) as connection, connection:
        connection.execute("CREATE TABLE t AS SELECT CAST(x'ff' AS TEXT) AS word")
    with (
        closing(Database(f"sqlite:///{tmp_path}/spotd.db")) as database,
        pytest.raises(StoreError, match=r"it is damaged: stop spotd.*UTF-8") as caught,
    ):
        database.read(lambda conn: conn.execute(text("SELECT word FROM t")).all())
    assert not isinstance(caught.value, StoreUnavailableError), "it would be tried for ever"


def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    store = make(f"sqlite:///{tmp_path}/spotd.db")
    submit(store)
    modes = {path.name: path.stat().st_mode & 0o077 for path in tmp_path.iterdir()}
    store.close()
    assert modes == {"spotd.db": 0, "spotd.db-wal": 0, "spotd.db-shm": 0}


def test_the_recipe_of_sqlite(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/spotd.db")
    wanted = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 5000}
    for name, value in wanted.items():
        statement = text(f"PRAGMA {name}")
        assert database.write(lambda c, s=statement: c.execute(s).scalar_one()) == value
        assert database.read(lambda c, s=statement: c.execute(s).scalar_one()) == value
    with pytest.raises(StoreUnavailableError, match="read-only"):
        database.read(lambda c: c.execute(text("CREATE TABLE t (x)")))
    database.close()


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spotd.store.engine._file_system", lambda _folder: "nfs4")
    with pytest.raises(StoreError, match=r"network file system.*PostgreSQL"):
        make(f"sqlite:///{tmp_path}/spotd.db")


def test_a_locked_database_is_unavailable_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make(f"sqlite:///{tmp_path}/spotd.db")
    submit(store)
    other = sqlite3.connect(tmp_path / "spotd.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    _shorten_busy_timeout(store)
    with pytest.raises(StoreUnavailableError, match="another process holds it locked"):
        store.jobs.mark_due(["j1"])
    assert view(store).job.wakeup.notes == 1  # readers wait for nobody
    other.execute("ROLLBACK")
    other.close()
    store.jobs.mark_due(["j1"])
    assert view(store).job.wakeup.notes == 2
    store.close()


def _shorten_busy_timeout(store: SqlStore) -> None:
    connection = store.session.database._writer.raw_connection()
    connection.execute("PRAGMA busy_timeout=50")  # type: ignore[attr-defined]
    connection.close()


@pytest.fixture
def busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqlStore]:
    """A store with a placed job, in whose line somebody stands who never comes to an end."""
    store = make(f"sqlite:///{tmp_path}/spotd.db")
    placed(store)
    monkeypatch.setattr("spotd.store.engine.LINE_S", 0.05)
    with store.session.database._line:
        yield store
    store.close()


def test_decisions_never_stand_in_the_line(busy: SqlStore) -> None:
    """Of the many that write after a storm, what is to be done next waits for none."""
    assert busy.commit(view(busy), plan(), NOW).status is CommitStatus.DONE
    busy.jobs.claim(NOW, "replica", 1, S)


def test_the_follower_never_stands_in_the_line(busy: SqlStore) -> None:
    """While it waits, no node is heard: not one of them, a notice neither."""
    busy.journal.record([said(("warning", {"text": "x"}))])
    busy.nodes.record_heartbeats({"j1-g1-0": NOW + 1})
    busy.nodes.record_link("j1-g1-0", NOW + 2)
    assert node(busy).agent.link_down_at_us == NOW + 2


def test_a_turn_that_never_comes_is_an_error(busy: SqlStore) -> None:
    with pytest.raises(StoreUnavailableError, match=r"too busy.*df"):
        busy.jobs.mark_due(["j1"])


def test_who_stood_in_the_line_leaves_it(tmp_path: Path) -> None:
    store = make(f"sqlite:///{tmp_path}/spotd.db")
    submit(store)
    for _ in range(2):
        store.jobs.mark_due(["j1"])
    assert not store.session.database._line.locked()
    store.close()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder for anybody. Not one of pytest's: every run of it that begins closes them to all
    but their owner."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_read_only_database(open_folder: Path) -> None:
    make(f"sqlite:///{open_folder}/spotd.db").close()
    program = "import os; from tests.spotd.store.conftest import make; make('sqlite://').close()\n"
    (open_folder / "spotd.db").chmod(0o444)
    if os.geteuid() == 0:
        # Root may write anything: be somebody else, once everything is imported.
        program += "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
    program += f"make('sqlite:///{open_folder}/spotd.db')"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "StoreUnavailableError" in done.stderr
    assert "cannot be opened for writing: Permission denied" in done.stderr


# --- a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB for root, else a folder in which files cannot grow beyond 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() == 0:
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
        subprocess.run(mount, check=True)
        yield folder
        subprocess.run(["umount", str(folder)], check=True)
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    yield folder
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, old)


def _fill(store: SqlStore) -> tuple[int, str]:
    """Write until the disk is full: how many events were acknowledged, and the error."""
    for written in range(1000):
        try:
            store.events.add("j1", Event("filler", "x" * 20_000), NOW)
        except StoreUnavailableError as error:
            return written, str(error)
    raise AssertionError("the disk never fills up")


def test_a_full_disk_loses_nothing_and_is_got_over(small_disk: Path) -> None:
    store = make(f"sqlite:///{small_disk}/spotd.db")
    before = submit(store)
    written, error = _fill(store)
    assert "full" in error
    assert str(small_disk) in error
    # Nothing can be decided, nothing half-written is left, and what was acknowledged is there.
    decided = opening()
    loud = plan(events=(Event("y", "y" * 200_000),))
    with pytest.raises(StoreUnavailableError):
        store.commit(before, loud, NOW)
    assert view(store) == before
    assert len([r for r in store.events.rows("j1") if r.event.kind == "filler"]) == written
    assert store.ledger.segments() == []
    # Space returns: it works again, in the same process.
    if os.geteuid() == 0:
        more = ["mount", "-o", "remount,size=8m", str(small_disk)]
        subprocess.run(more, check=True)
    else:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, hard))
    assert store.commit(view(store), decided, NOW).status is CommitStatus.DONE
    check = text("PRAGMA integrity_check")
    assert store.session.database.read(lambda c: c.execute(check).scalar_one()) == "ok"
    store.close()


# --- kill -9

_CHILD = """
import sys
from spotd.domain.plan import (ChangeJob,)
from tests.spotd.store.build import plan, view, NOW
from tests.spotd.store.conftest import make
store = make(sys.argv[1])
print("ready", flush=True)
while True:
    seen = view(store)
    result = store.commit(seen, plan(ChangeJob({"failures": seen.job.version + 1})), NOW)
    print(result.view.job.version, flush=True)
"""


def test_kill_9_loses_no_acknowledged_commit(url: str) -> None:
    store = make(url)
    submit(store)
    acknowledged = 0
    for turn in range(5):
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD, url], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        for _ in range(3 + 5 * turn):
            acknowledged = int(child.stdout.readline())
        child.kill()
        rest = child.stdout.read().split("\n")
        acknowledged = max([acknowledged, *[int(line) for line in rest[:-1] if line]])
        child.wait()
        child.stdout.close()
        job = view(store).job
        # The last commit may have been made and not been told; none may be half made.
        assert acknowledged <= job.version <= acknowledged + 1
        assert job.backoff.failures == job.version
    store.close()


# --- PostgreSQL


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match=r"does not answer.*is the server up\?"):
        make(f"postgresql://spotd:hunter2@/spotd?host={tmp_path}")


def test_a_database_that_is_not_there(server: postgres.Postgres) -> None:
    with pytest.raises(
        StoreUnavailableError, match=r'"nosuch" does not exist; correct database\.url'
    ):
        make(server.url("nosuch"))


def test_a_glance_begins_no_transaction(server: postgres.Postgres) -> None:
    """It would have to be ended as well: two more ways there and back."""

    def between(conn: Connection) -> TransactionStatus:
        conn.execute(text("SELECT 1"))
        dbapi: Any = conn.connection.dbapi_connection
        return TransactionStatus(dbapi.info.transaction_status)

    with closing(Database(server.url(server.create()))) as database:
        assert database.read_one(between) == TransactionStatus.IDLE
        assert database.read(between) == TransactionStatus.INTRANS
        assert database.write(between) == TransactionStatus.INTRANS, (
            "and what came after it is none"
        )


def test_a_server_that_restarts_is_found_again() -> None:
    with postgres.running() as server:
        store = make(server.url(server.create()))
        submit(store)
        server.stop()
        for broken in (lambda: view(store), lambda: store.jobs.mark_due(["j1"])):
            with pytest.raises(StoreUnavailableError):
                broken()
        server.start()
        store.jobs.mark_due(["j1"])
        assert view(store).job.wakeup.notes == 2
        store.close()


def test_a_lock_that_is_held_too_long_is_given_up(server: postgres.Postgres) -> None:
    url = server.url(server.create("ready"))
    store = make(url)
    submit(store)
    held, release = threading.Event(), threading.Event()
    other = Database(url)

    def hold(conn: object) -> None:
        conn.execute(text("SELECT * FROM jobs FOR UPDATE"))  # type: ignore[attr-defined]
        held.set()
        release.wait(LIMIT_S)

    holder = threading.Thread(target=other.write, args=(hold,))
    holder.start()
    held.wait(LIMIT_S)
    with pytest.raises(StoreUnavailableError, match="locked"):
        store.commit(view(store), plan(ChangeJob({"failures": 1})), NOW)
    release.set()
    holder.join()
    assert store.commit(view(store), plan(), NOW).status is CommitStatus.DONE
    other.close()
    store.close()


def test_a_writer_that_loses_to_another_tries_again(server: postgres.Postgres) -> None:
    """Two transactions that lock two rows in opposite order: PostgreSQL ends one, we repeat it."""
    url = server.url(server.create("ready"))
    store = make(url)
    for name in ("a", "b"):
        submit(store, name)
    database = Database(url)
    meet, over = threading.Barrier(2), threading.Event()
    tries: list[str] = []

    def lock(first: str, second: str) -> None:
        def work(conn: object) -> None:
            tries.append(first)
            if tries.count(first) > 1:
                over.wait(LIMIT_S)  # the other one has what it wants: not both again
            for name in (first, second):
                statement = text("UPDATE jobs SET failures = failures + 1 WHERE id = :name")
                conn.execute(statement, {"name": name})  # type: ignore[attr-defined]
                if name == first and tries.count(first) == 1:
                    meet.wait(LIMIT_S)

        database.write(work)
        over.set()

    threads = [threading.Thread(target=lock, args=pair) for pair in (("a", "b"), ("b", "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tries) == 3
    assert [view(store, name).job.backoff.failures for name in ("a", "b")] == [2, 2]
    database.close()
    store.close()


# --- in memory, for simulations


def test_a_store_in_memory_is_a_whole_store() -> None:
    store = make("sqlite://")
    submit(store)
    assert store.commit(view(store), opening(), NOW).status is CommitStatus.DONE
    assert len(store.nodes.active()) == 1
    store.close()


def test_a_listing_takes_its_nodes_in_the_order_that_all_do(server: postgres.Postgres) -> None:
    """Else it and the signs of life of the same nodes wait for each other."""
    store = make(server.url(server.create("ready")))
    for name in ("j1", "j2"):
        placed(store, name)
        store.nodes.record_launched(f"{name}-g1-0", f"i-{name}", NOW)
    old = [instance(node(store, f"{name}-g1-0"), f"i-{name}") for name in ("j1", "j2")]
    store.instances.record_listing("aws", old, NOW + S, NOW + S)
    news = [old[0], replace(old[1], port=4444)]
    lock = "SELECT id FROM nodes WHERE id = '{}-g1-0' FOR UPDATE NOWAIT"
    listing = threading.Thread(
        target=store.instances.record_listing, args=("aws", news, NOW + 9 * S, NOW + 9 * S)
    )
    with store.session.database._writer.begin() as other:
        other.execute(text(lock.format("j2")))
        listing.start()
        _wait_for_a_waiter(store)  # it has come to the node that we hold
        with pytest.raises(OperationalError, match="could not obtain lock"):
            other.execute(text(lock.format("j1")))
    listing.join(LIMIT_S)
    assert node(store, "j2-g1-0").address.port == 4444
    store.close()


def _wait_for_a_waiter(store: SqlStore) -> None:
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    while not store.session.database.read(lambda conn: conn.execute(waiting).scalar_one()):
        time.sleep(0.01)
