"""The schema of a database: created, checked, upgraded; and the migrations lead to schema.py."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

import migrations
from spotd.domain.events import AuditOutcome, Event
from spotd.domain.units import S
from spotd.security.master_key import KeyState
from spotd.store import columns, engine, schema, version
from spotd.store.audit import AuditRow
from spotd.store.engine import Database
from spotd.store.errors import SchemaVersionError, StoreError
from spotd.store.secrets import SecretRow
from spotd.store.sql_store import open_store
from spotd.store.users import DisabledUser
from spotd.store.version import HEAD, downgrade, revision_of, upgrade
from tests.fixtures import postgres
from tests.spotd.store.build import NOW, placed, submit, view
from tests.spotd.store.conftest import make

OLDER = schema.REVISIONS[-2]
_PG_OBJECTS = """
SELECT 'column', table_name || '.' || column_name,
       concat_ws(' ', data_type, is_nullable, column_default)
  FROM information_schema.columns WHERE table_schema = 'public'
UNION ALL SELECT 'index', indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'
UNION ALL SELECT 'constraint', conrelid::regclass || '.' || conname, pg_get_constraintdef(oid)
  FROM pg_constraint WHERE connamespace = 'public'::regnamespace
"""
_SQLITE_OBJECTS = "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL"


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/empty.db"
    server: postgres.Postgres = request.getfixturevalue("server")
    return server.url(server.create())


@pytest.fixture
def database(empty_url: str) -> Iterator[Database]:
    opened = Database(empty_url)
    yield opened
    opened.close()


def _objects(conn: Connection) -> set[tuple[str, str, str]]:
    """Every table, column, index and constraint, in the database's own words."""
    if conn.dialect.name == "postgresql":
        rows = conn.execute(text(_PG_OBJECTS))
        return {(row[0], row[1], row[2]) for row in rows}
    found = set()
    for kind, name, sql in conn.execute(text(_SQLITE_OBJECTS)):
        # The order of constraints in the text of a table says nothing.
        parts = re.sub(r"\s+", " ", sql).strip()
        if kind == "table":
            head, body = parts.split("(", 1)
            columns = re.split(r",\s(?![^(]*\))", body.rstrip().removesuffix(")").strip())
            parts = head + " / ".join(sorted(columns))
        found.add((kind, name, parts.replace('"', "")))
    return found


@pytest.mark.req("UX-04")
def test_the_migrations_make_the_very_tables_of_the_schema(
    empty_url: str, database: Database
) -> None:
    database.write(columns.metadata.create_all)
    made = database.read(_objects)
    database.write(columns.metadata.drop_all)
    assert upgrade(empty_url) == ("", HEAD)
    database.write(lambda conn: conn.execute(text("DROP TABLE alembic_version")))
    assert database.read(_objects) == made

    def differences(conn: Connection) -> list[object]:
        return list(compare_metadata(MigrationContext.configure(conn), columns.metadata))

    assert database.read(differences) == []


@pytest.mark.req("UX-04")
def test_what_was_added_lately_can_be_taken_back(empty_url: str, database: Database) -> None:
    """With rows in it, the audit's included, and up again."""
    upgrade(empty_url)
    before = database.read(_objects)
    store = make(empty_url)
    placed(store)
    store.audit.add(AuditRow(NOW, 1, "ada", "cancel", "j1", AuditOutcome.DONE))
    store.secrets.put(SecretRow("A", NOW, "ada"), b"sealed", 0)
    store.users.add_admission("j1-g1-0", "bob", NOW)
    store.users.disable(DisabledUser("bob", 7, NOW, "ada"))
    kept = (store.load_views(["j1"], NOW), store.secrets.key_state())
    store.close()

    def down(conn: Connection) -> None:
        config = Config()
        config.set_main_option("script_location", str(Path(migrations.__file__).parent))
        config.attributes["connection"] = conn
        command.downgrade(config, "0002")

    database.write(down)
    assert "audit" not in {name.split(".")[0] for _, name, _ in database.read(_objects)}
    assert upgrade(empty_url) == ("0002", HEAD)
    assert database.read(_objects) == before
    store = make(empty_url)
    assert (store.load_views(["j1"], NOW), store.secrets.key_state()) == kept
    assert (store.audit.rows(0), store.secrets.rows(), store.users.disabled()) == ([], [], [])
    store.close()


def test_every_revision_is_known_and_the_last_is_head() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    script = ScriptDirectory.from_config(config)
    known = tuple(revision.revision for revision in script.walk_revisions())[::-1]
    assert known == schema.REVISIONS
    assert script.get_current_head() == HEAD


def test_an_upgraded_database_opens_and_works(empty_url: str) -> None:
    upgrade(empty_url)
    assert upgrade(empty_url) == (HEAD, HEAD)
    store = make(empty_url)
    submit(store)
    store.events.add("j1", Event("x", "it can tell"), NOW)
    assert store.deployment.id() == "d0"
    store.close()


def test_no_limit_of_the_daemon_s_statements_ends_an_upgrade(
    server: postgres.Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large table takes its time, and on a busy machine alembic does."""
    url = server.url(server.create())
    upgrade(url)
    downgrade(url, OLDER)
    limits = "-c statement_timeout=200 -c idle_in_transaction_session_timeout=200"
    monkeypatch.setattr(engine, "_PG_OPTIONS", limits)
    add_counters = version._add_counters

    def slowly(conn: Connection) -> None:
        time.sleep(0.5)
        conn.execute(text("SELECT pg_sleep(0.5)"))
        add_counters(conn)

    monkeypatch.setattr(version, "_add_counters", slowly)
    assert upgrade(url) == (OLDER, HEAD)


def test_the_deployment_keeps_the_id_it_was_created_with(url: str) -> None:
    make(url).close()
    again = open_store(
        url, now=lambda: 0, notify=lambda: None, deployment_factory=lambda: "another"
    )
    assert again.deployment.id() == "d0"
    again.close()


def test_the_first_check_of_a_master_key_is_the_one_that_counts(url: str) -> None:
    store, again = make(url), make(url)
    assert store.secrets.key_state() == KeyState(None, 0)
    assert store.secrets.store_key_check(b"first") == KeyState(b"first", 0)
    assert (
        again.secrets.store_key_check(b"second")
        == KeyState(b"first", 0)
        == again.secrets.key_state()
    )
    store.close()
    again.close()


def _claims_revision(url: str, revision: str) -> None:
    database = Database(url)
    statement = text("UPDATE alembic_version SET version_num = :revision")
    database.write(lambda conn: conn.execute(statement, {"revision": revision}))
    database.close()


def test_an_older_schema_is_refused_with_the_command_to_run(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(url).close()
    monkeypatch.setattr(schema, "REVISIONS", ("0000", HEAD))
    _claims_revision(url, "0000")
    with pytest.raises(SchemaVersionError, match=r"schema 0000.*`spotd db upgrade`"):
        make(url)


def test_a_newer_schema_is_refused_and_not_touched(url: str) -> None:
    make(url).close()
    _claims_revision(url, "9999")
    for refused in (lambda: make(url), lambda: upgrade(url)):
        with pytest.raises(SchemaVersionError, match=r"9999.*newer spotd"):
            refused()


def test_someone_elses_database_is_left_alone(empty_url: str, database: Database) -> None:
    database.write(lambda conn: conn.execute(text("CREATE TABLE users (id INTEGER)")))
    for refused in (lambda: make(empty_url), lambda: upgrade(empty_url)):
        with pytest.raises(StoreError, match=r"not spotd's.*only spotd uses"):
            refused()


def test_a_failed_upgrade_leaves_nothing_behind(empty_url: str, database: Database) -> None:
    # A view is not a table: the database counts as empty, and the migration fails half-way.
    database.write(lambda conn: conn.execute(text("CREATE VIEW nodes AS SELECT 1 AS one")))
    before = database.read(_objects)
    with pytest.raises(StoreError, match="refused a statement"):
        upgrade(empty_url)
    assert database.read(_objects) == before
    database.write(lambda conn: conn.execute(text("DROP VIEW nodes")))
    assert upgrade(empty_url) == ("", HEAD)


def test_the_daemon_does_not_load_alembic(tmp_path: Path) -> None:
    program = (
        "import sys; from spotd.store.sql_store import open_store; "
        f"open_store('sqlite:///{tmp_path}/s.db', now=lambda: 1, notify=print, "
        "deployment_factory=lambda: 'd').close(); sys.exit('alembic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_view_is_the_same_after_a_restart(url: str) -> None:
    store = make(url)
    before = submit(store)
    store.close()
    again = make(url)
    assert view(again) == before
    again.close()


def test_a_database_that_names_two_schemas_is_refused(url: str) -> None:
    make(url).close()
    with closing(Database(url)) as database:
        database.write(lambda c: c.execute(text("INSERT INTO alembic_version VALUES ('0001')")))
    for refused in (lambda: make(url), lambda: upgrade(url), lambda: downgrade(url, "0001")):
        with pytest.raises(StoreError, match=rf"names 0001 and {HEAD} as its schema: restore a"):
            refused()


@pytest.mark.parametrize("way", ["up", "down"])
def test_not_while_a_daemon_holds_a_lease(url: str, way: str) -> None:
    """On a server no lock tells who lives."""
    with closing(make(url)) as store:
        if way == "up":
            downgrade(url, OLDER)
        store.leases.take("alerts", "box-1", lambda: NOW, 20 * S)
        store.leases.take("survey:aws", "box-1", lambda: NOW, 15 * S)

        def go(now_us: int) -> tuple[str, str]:
            return upgrade(url, now_us) if way == "up" else downgrade(url, OLDER, now_us)

        with closing(Database(url)) as database:
            before = database.read(revision_of)
            with pytest.raises(
                StoreError, match=r"by the spotd box-1: stop it first; .* the lease ends in 13 s"
            ):
                go(NOW + 7 * S)
            assert database.read(revision_of) == before
        if way == "up":
            go(NOW + 20 * S)  # it was killed
        else:
            for duty in ("alerts", "survey:aws"):  # a clean stop
                store.leases.take(duty, "box-1", lambda: NOW + S, 0)
            go(NOW + S)
    with closing(Database(url)) as database:
        assert database.read(revision_of) == (HEAD if way == "up" else OLDER)
