"""A copy of the database, made while it is in use, and the way back, on both databases."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from sqlalchemy import text

from spotd.base.errors import UserError
from spotd.base.lock import hold_database
from spotd.domain.events import AuditOutcome, Event
from spotd.domain.units import S
from spotd.store.audit import AuditRow
from spotd.store.backup import back_up, restore
from spotd.store.engine import Database
from spotd.store.errors import StoreError
from spotd.store.integrity import check_whole
from spotd.store.interface import Store
from spotd.store.secrets import SecretRow
from spotd.store.sql_store import SqlStore
from spotd.store.transaction import Transaction
from spotd.store.version import downgrade
from tests.fixtures import postgres
from tests.spotd.store.build import NOW, kinds, placed, submission, submit
from tests.spotd.store.conftest import make

REASON = "this database was restored from the backup of 1970-01-12 13:46:40 UTC"


@pytest.fixture
def target(url: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Another database, of the same kind as `url`, that is not there yet."""
    if url.startswith("sqlite"):
        (tmp_path / "fresh").mkdir()
        return f"sqlite:///{tmp_path}/fresh/spotd.db"
    server: postgres.Postgres = request.getfixturevalue("server")
    return server.url(server.create())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "spotd.backup"


def told(store: Store) -> list[object]:
    """All that a user can ask for."""
    return [
        store.load_views(["j1", "j2"], NOW),
        store.jobs.rows(),
        store.nodes.of_job("j1"),
        store.events.rows("j1"),
        store.jobs.secrets("j3"),
        store.jobs.key("j1"),
        store.deployment.id(),
        store.audit.rows(0),
        store.secrets.rows(),
        store.secrets.values(["A"]),
        store.ledger.segments(),
        store.secrets.key_state(),
        store.market.load(NOW),
    ]


def test_what_is_restored_is_what_was_backed_up_and_in_quarantine(
    sql_store: SqlStore, url: str, target: str, file: Path
) -> None:
    placed(sql_store)
    sealed = {"TOKEN": b"\x00sealed\xff"}
    sql_store.jobs.submit(replace(submission("j3"), request_id="r3", secrets=sealed), NOW)
    sql_store.secrets.store_key_check(b"\x01check")
    sql_store.secrets.put(SecretRow("A", NOW, "ada"), b"\x00kept\xff", 0)
    sql_store.audit.add(AuditRow(NOW, 7, "ada", "cancel", "j1", AuditOutcome.DONE))
    sql_store.leases.take("alerts", "the dead", lambda: NOW, 3600 * S)
    before = told(sql_store)
    back_up(url, file, NOW)
    assert file.stat().st_mode & 0o777 == 0o600
    submit(sql_store, "j2")
    assert sql_store.deployment.quarantine() == "", "the original is not"

    assert restore(target, file, NOW + S) == REASON
    restored = make(target)
    assert told(restored) == before
    assert restored.deployment.quarantine() == REASON
    with pytest.raises(StoreError, match="append-only"):
        restored.session.database.write(lambda c: c.execute(text("DELETE FROM audit")))
    assert restored.leases.take("alerts", "me", lambda: NOW, S), "held by nobody"
    restored.close()


def test_a_copy_that_is_put_in_place_by_hand_is_in_quarantine_and_says_so(
    tmp_path: Path, file: Path
) -> None:
    url = f"sqlite:///{tmp_path}/spotd.db"
    make(url).close()
    back_up(url, file, NOW)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["spotd.backup", "spotd.db"]
    shutil.copy(file, tmp_path / "by-hand.db")
    store = make(f"sqlite:///{tmp_path}/by-hand.db")
    assert store.deployment.quarantine() == REASON
    assert [row.event.kind for row in store.alerts.due(NOW, 9)] == ["quarantine"]
    store.close()


def test_it_is_one_moments_view_of_a_database_that_is_written_to(
    sql_store: SqlStore, url: str, target: str, file: Path
) -> None:
    """Pairs of rows that are written together are in it together; no writer waits for long."""
    submit(sql_store, "j1")
    done, written = threading.Event(), [0]

    def write() -> None:
        def pair(tx: Transaction) -> None:
            for _ in range(2):
                tx.event("j1", Event("pair", str(written[0])), NOW)

        while not done.is_set():
            sql_store.session.write(pair)
            written[0] += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        while written[0] < 20:
            assert writer.is_alive()
        back_up(url, file, NOW)
        copied = written[0]
    finally:
        done.set()
        writer.join()
    assert written[0] >= copied > 0
    restore(target, file, NOW)
    restored = make(target)
    found = [row.event.text for row in restored.events.rows("j1", limit=99_999)]
    assert len(found) >= 40
    assert found == sorted(found, key=int)
    assert all(found.count(text) == 2 for text in {*found})
    restored.close()


def test_nothing_is_overwritten(sql_store: SqlStore, url: str, target: str, file: Path) -> None:
    file.write_text("precious")
    with pytest.raises(StoreError, match="exists already: name a new file"):
        back_up(url, file, NOW)
    assert file.read_text() == "precious"
    file.unlink()
    back_up(url, file, NOW)
    submit(sql_store)
    with pytest.raises(StoreError, match=r"move it away first|is not empty"):
        restore(url, file, NOW)
    assert kinds(sql_store) is not None
    assert sql_store.deployment.quarantine() == ""


def test_a_database_in_use_is_not_restored(tmp_path: Path, file: Path) -> None:
    url = f"sqlite:///{tmp_path}/spotd.db"
    make(url).close()
    back_up(url, file, NOW)
    (tmp_path / "spotd.db").unlink()
    with hold_database(tmp_path / "spotd.db"), pytest.raises(UserError, match="another spotd uses"):
        restore(url, file, NOW)
    assert not (tmp_path / "spotd.db").exists()


@pytest.mark.parametrize("damage", ["page", "short", "text", "missing"])
def test_a_damaged_backup_is_refused_and_leaves_nothing(
    tmp_path: Path, file: Path, damage: str
) -> None:
    url = f"sqlite:///{tmp_path}/spotd.db"
    store = make(url)
    for number in range(50):
        store.jobs.submit(submission(f"j{number}", spec_yaml="x" * 2000), NOW)
    store.close()
    back_up(url, file, NOW)
    data = file.read_bytes()
    damaged = {
        "page": data[:8192] + b"\xff" * 40_000 + data[48_192:],
        "short": data[: len(data) // 2],
        "text": b"not a backup",
    }
    file.unlink()
    if damage in damaged:
        file.write_bytes(damaged[damage])
    (tmp_path / "fresh").mkdir()
    with pytest.raises(StoreError, match=r"is damaged|is not a backup|cannot be read"):
        restore(f"sqlite:///{tmp_path}/fresh/spotd.db", file, NOW)
    assert [path.name for path in (tmp_path / "fresh").iterdir()] in ([], ["spotd.db.lock"])


def test_damage_that_no_database_notices_is_refused(
    sql_store: SqlStore, url: str, target: str, file: Path
) -> None:
    """A letter of a job's file: the page, the table and the row are as good as before."""
    sql_store.jobs.submit(submission("j1", spec_yaml="run: train"), NOW)
    back_up(url, file, NOW)
    data = file.read_bytes()
    assert b"run: train" in data
    file.write_bytes(data.replace(b"run: train", b"run: brain"))
    with pytest.raises(StoreError, match="is damaged: its digest differs"):
        restore(target, file, NOW)
    file.write_bytes(data)
    assert restore(target, file, NOW) == REASON, "there was nothing in its way"


def test_a_backup_of_a_spotd_that_wrote_no_digest_is_restored(
    sql_store: SqlStore, url: str, target: str, file: Path
) -> None:
    placed(sql_store)
    back_up(url, file, NOW)
    data = file.read_bytes()
    digest = data.index(b"\n-- spotd: sha256 of all that is above: ")
    assert hashlib.sha256(data[:digest]).hexdigest() == data[-65:-1].decode()
    file.write_bytes(data[:digest])
    assert restore(target, file, NOW) == REASON


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            "ALTER TABLE jobs RENAME COLUMN outcome_text TO outcome_test",
            r"it lacks jobs\.outcome_text",
        ),
        ("DROP TABLE alerts", r"is damaged: it lacks alerts\.at_us and"),
    ],
)
def test_a_backup_that_lacks_what_ours_has_is_refused(
    tmp_path: Path, file: Path, change: str, told: str
) -> None:
    """Whole, as far as SQLite can tell."""
    make(f"sqlite:///{file}").close()
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(change)
    with pytest.raises(StoreError, match=told):
        restore(f"sqlite:///{tmp_path}/fresh.db", file, NOW)
    assert not (tmp_path / "fresh.db").exists()


def test_a_schema_that_is_no_text_is_damage(tmp_path: Path, file: Path) -> None:
    make(f"sqlite:///{file}").close()
    data = file.read_bytes()
    file.write_bytes(data.replace(b"CREATE TABLE jobs", b"CREATE T\xffBLE jobs"))
    with pytest.raises(StoreError, match="is damaged"):
        restore(f"sqlite:///{tmp_path}/fresh.db", file, NOW)
    with pytest.raises(StoreError, match=r"is damaged \(its schema is not text\)"):
        check_whole(file)


def test_a_database_that_cannot_be_copied_leaves_no_file(tmp_path: Path, file: Path) -> None:
    (tmp_path / "spotd.db").write_bytes(b"SQLite format 3\x00" + b"rubbish" * 1000)
    with pytest.raises(StoreError, match=r"cannot be copied|is damaged"):
        back_up(f"sqlite:///{tmp_path}/spotd.db", file, NOW)
    assert not file.exists()


def test_a_database_that_is_not_there_is_not_backed_up(tmp_path: Path, file: Path) -> None:
    """A copy of nothing, called checked, would be found out when it is needed."""
    with pytest.raises(
        StoreError, match=r"there is no database .*spotd\.db: correct database\.url"
    ):
        back_up(f"sqlite:///{tmp_path}/spotd.db", file, NOW)
    assert list(tmp_path.iterdir()) == [], "nor is one made"


def test_a_database_that_holds_nothing_is_neither_backed_up_nor_restored(
    target: str, tmp_path: Path, file: Path
) -> None:
    if target.startswith("sqlite"):
        (tmp_path / "fresh" / "spotd.db").touch()
    with pytest.raises(StoreError, match=r"holds nothing yet: correct database\.url"):
        back_up(target, file, NOW)
    assert not file.exists()


def test_the_backup_of_nothing_is_not_restored(tmp_path: Path, file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("VACUUM")
    with pytest.raises(StoreError, match="the backup of a database that held nothing"):
        restore(f"sqlite:///{tmp_path}/fresh.db", file, NOW)
    assert not (tmp_path / "fresh.db").exists()


def test_the_other_kind_of_database_is_told(server: postgres.Postgres, file: Path) -> None:
    file.write_bytes(b"SQLite format 3\x00" + b"\x00" * 100)
    with pytest.raises(StoreError, match=r"a backup of SQLite, and database\.url is PostgreSQL"):
        restore(server.url(server.create()), file, NOW)


def test_without_the_program_the_package_is_named(server: postgres.Postgres, file: Path) -> None:
    url = server.url(server.create("ready"))
    with pytest.raises(StoreError, match="pg_dump is missing: apt-get install postgresql-client"):
        back_up(url, file, NOW, lambda _name: None)
    assert not file.exists()


@pytest.fixture
def locked(server: postgres.Postgres, tmp_path: Path) -> str:
    """A program in place of pg_dump that tells what it was given, and fails."""
    program = tmp_path / "pg_dump"
    program.write_text(
        '#!/bin/sh\nprintf "%s\\n" "$@" > "$0.args"\necho "$PGPASSWORD" >&2\nexit 1\n'
    )
    program.chmod(0o755)
    parts = urlsplit(server.url(server.create("ready")))
    return parts._replace(netloc="spotd:topsecret@").geturl()


@pytest.mark.parametrize("place", ["user", "query"])
def test_the_password_is_no_argument(locked: str, tmp_path: Path, file: Path, place: str) -> None:
    if place == "query":
        parts = urlsplit(locked)
        query = f"{parts.query}&password=topsecret".removeprefix("&")
        locked = parts._replace(netloc="spotd@", query=query).geturl()
    with pytest.raises(StoreError, match=r"pg_dump of .* failed: topsecret"):
        back_up(locked, file, NOW, lambda name: str(tmp_path / name))
    assert "topsecret" not in (tmp_path / "pg_dump.args").read_text()
    assert not file.exists()


def test_a_server_that_hangs_is_given_up(
    locked: str, tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pg_dump").write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr("spotd.store.backup.LIMIT_S", 0.2)
    with pytest.raises(StoreError, match="took longer than 0 s: does the server hang"):
        back_up(locked, file, NOW, lambda name: str(tmp_path / name))
    assert not file.exists()


def test_the_backup_of_an_older_schema_is_upgraded(tmp_path: Path, file: Path) -> None:
    """A backup is made before an upgrade, and may be needed after one."""
    old = f"sqlite:///{tmp_path}/old.db"
    make(old).close()
    downgrade(old, "0002")  # which knows of no quarantine
    back_up(old, file, NOW)
    fresh = f"sqlite:///{tmp_path}/fresh.db"
    assert restore(fresh, file, NOW) == "this database was restored from spotd.backup"
    store = make(fresh)
    assert store.deployment.quarantine()
    store.close()


def test_a_newer_schema_is_refused(sql_store: SqlStore, url: str, target: str, file: Path) -> None:
    database = Database(url)
    database.write(lambda c: c.execute(text("UPDATE alembic_version SET version_num = '9999'")))
    database.close()
    back_up(url, file, NOW)
    with pytest.raises(StoreError, match=r"9999.*newer spotd"):
        restore(target, file, NOW)
