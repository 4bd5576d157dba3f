"""A restore into PostgreSQL happens as a whole or not at all, and is in quarantine from the first
moment on, whatever kills it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import inspect, text

from spotd.domain.units import S
from spotd.store import schema
from spotd.store.backup import back_up, restore
from spotd.store.engine import Database
from spotd.store.errors import StoreError
from spotd.store.version import downgrade, revision_of, upgrade
from tests.fixtures import postgres
from tests.spotd.store.build import NOW, placed
from tests.spotd.store.conftest import make

REASON = "this database was restored from it's {old}.backup"
SEAL = b"\n-- spotd: sha256"


@pytest.fixture
def url(server: postgres.Postgres) -> str:
    """A database with a job in it, that a daemon holds."""
    found = server.url(server.create("ready"))
    with closing(make(found)) as store:
        placed(store)
        store.leases.take("alerts", "the dead", lambda: NOW, 3600 * S)
    return found


@pytest.fixture
def target(server: postgres.Postgres) -> str:
    """A database that holds nothing."""
    return server.url(server.create())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "it's {old}.backup"


def tables(url: str) -> list[str]:
    with closing(Database(url)) as database:
        return database.read(lambda conn: inspect(conn).get_table_names())


def name_schema(url: str, statement: str) -> None:
    with closing(Database(url)) as database:
        database.write(lambda conn: conn.execute(text(statement)))


@pytest.mark.parametrize("schema", ["0001", "0002", "0003", "0009"])
def test_the_backup_of_an_older_schema_is_upgraded_held_by_nobody_and_told(
    url: str, target: str, file: Path, schema: str
) -> None:
    downgrade(url, schema)
    back_up(url, file, NOW)
    assert restore(target, file, NOW) == REASON
    assert "restored" not in tables(target)
    with closing(make(target)) as store:
        assert store.deployment.quarantine() == REASON
        assert [row.event.kind for row in store.alerts.due(NOW, 9)][-1:] == ["quarantine"]
        assert store.leases.take("alerts", "me", lambda: NOW, S)


@pytest.mark.parametrize("schema", ["0002", "0009"])
def test_one_that_is_killed_before_the_upgrade_is_in_quarantine(
    url: str, target: str, file: Path, tmp_path: Path, schema: str
) -> None:
    downgrade(url, schema)
    back_up(url, file, NOW)
    psql = tmp_path / "psql"
    psql.write_text(f'#!/bin/sh\n"{postgres.binary("psql")}" "$@" && kill -9 $PPID\n')
    psql.chmod(0o755)
    code = "import sys, pathlib; from spotd.store.backup import restore; "
    code += "restore(sys.argv[1], pathlib.Path(sys.argv[2]), 1)"
    command = [sys.executable, "-c", code, target, str(file)]
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with closing(Database(target)) as database:
        assert database.read(revision_of) == schema, "killed after psql and before the upgrade"
    upgrade(target, NOW)  # as its refusal to start advises; held by nobody
    with closing(make(target)) as store:
        assert store.deployment.quarantine() == REASON


def test_a_newer_schema_is_refused_and_leaves_nothing(url: str, target: str, file: Path) -> None:
    name_schema(url, "UPDATE alembic_version SET version_num = '9999'")
    back_up(url, file, NOW)
    for _ in range(2):
        with pytest.raises(StoreError, match=r"9999.*newer spotd"):
            restore(target, file, NOW)
        assert tables(target) == []


def test_a_backup_that_names_two_schemas_or_none_is_refused(
    url: str, target: str, file: Path
) -> None:
    back_up(url, file, NOW)
    dump = file.read_bytes()
    newest = schema.REVISIONS[-1]
    row = f"(version_num) FROM stdin;\n{newest}\n".encode()
    assert dump.count(row) == 1
    dump = dump[: dump.index(SEAL)]
    file.write_bytes(dump.replace(row, row + b"0012\n"))
    with pytest.raises(StoreError, match=rf"names {newest} and 0012 as its schema"):
        restore(target, file, NOW)
    file.write_bytes(dump.replace(row, b"(version_num) FROM stdin;\n"))
    with pytest.raises(StoreError, match=r"the backup of a database that held nothing"):
        restore(target, file, NOW)
    assert tables(target) == []


def test_half_a_backup_is_refused_and_leaves_nothing(url: str, target: str, file: Path) -> None:
    """psql takes the end of a file for the end of a table's rows."""
    back_up(url, file, NOW)
    dump = file.read_bytes()
    file.write_bytes(dump[: dump.index(b"COPY public.jobs") + 100])
    with pytest.raises(StoreError, match=r"is damaged: its end is missing"):
        restore(target, file, NOW)
    assert tables(target) == []


def test_what_the_server_refuses_leaves_nothing(url: str, target: str, file: Path) -> None:
    back_up(url, file, NOW)
    file.write_bytes(file.read_bytes() + b"\nSELECT nonsense;\n")
    with pytest.raises(StoreError, match=r"psql of .* failed: .*nonsense"):
        restore(target, file, NOW)
    assert tables(target) == []


@st.composite
def edits(draw: st.DrawFn, dump: bytes) -> bytes:
    """The dump cut, with a line or some bytes of it gone, twice there, or others."""
    lines = dump.splitlines(keepends=True)
    where = draw(st.integers(0, len(lines) - 1))
    count = draw(st.integers(1, 3))
    match draw(st.sampled_from(["cut", "gone", "twice", "bytes"])):
        case "cut":
            return b"".join(lines[:where])
        case "gone":
            del lines[where : where + count]
        case "twice":
            lines[where:where] = lines[where : where + count]
        case "bytes":
            at = draw(st.integers(0, len(lines[where])))
            # No command of psql's: damage is meant, not malice.
            new = draw(st.binary(max_size=3)).replace(b"\\", b"/")
            lines[where] = lines[where][:at] + new + lines[where][at + count :]
    return b"".join(lines)


def test_damage_of_any_kind_is_one_error_and_leaves_nothing(
    url: str, server: postgres.Postgres, file: Path
) -> None:
    """Of a backup without a digest, where PostgreSQL alone judges; with one, all of it is told."""
    back_up(url, file, NOW)
    whole = file.read_bytes()
    target = server.url(server.create())

    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    @given(edits(whole[: whole.index(SEAL)]), st.booleans())
    def check(damaged: bytes, sealed: bool) -> None:
        nonlocal target
        seal = whole[whole.index(SEAL) :] if sealed else b""
        file.write_bytes(damaged + seal)
        try:
            reason = restore(target, file, NOW)
        except StoreError as error:
            told = str(error)
            assert told
            assert tables(target) == []
        else:
            assert not sealed or damaged + seal == whole
            with closing(make(target)) as store:
                assert store.deployment.quarantine() == reason
            target = server.url(server.create())

    check()
