"""The record of who did what: added, read, and by no means changed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import text

from spotd.domain.events import AuditOutcome
from spotd.store.audit import AuditRow
from spotd.store.engine import Database
from spotd.store.errors import StoreError
from spotd.store.interface import Store
from spotd.store.sql_store import SqlStore
from spotd.store.version import upgrade
from tests.fixtures import postgres
from tests.spotd.store.build import NOW, S
from tests.spotd.store.conftest import make

ROW = AuditRow(NOW, 1000, "ada", "cancel", "gpt", AuditOutcome.DONE, "id=j1", "r1")


def test_lines_are_read_in_order_and_by_page(store: Store) -> None:
    for at in range(5):
        store.audit.add(replace(ROW, at_us=NOW + at, text=f"{at}"))
    rows = store.audit.rows(NOW + 1, limit=2)
    assert [row.text for row in rows] == ["1", "2"]
    rows += store.audit.rows(NOW + 1, rows[-1].id)
    assert [row.text for row in rows] == ["1", "2", "3", "4"]
    assert replace(rows[0], id=0) == replace(ROW, at_us=NOW + 1, text="1")
    assert store.audit.rows(NOW + 5) == []


def test_what_a_user_wrote_is_cleaned(store: Store) -> None:
    store.audit.add(replace(ROW, target="a\0b", text="\udc80"))
    [row] = store.audit.rows(0)
    assert (row.target, row.text) == ("ab", "?")


def test_pruning_leaves_it_alone(store: Store) -> None:
    store.audit.add(replace(ROW, at_us=1))
    store.events.prune(NOW + S)
    assert len(store.audit.rows(0)) == 1


@pytest.mark.parametrize("statement", ["UPDATE audit SET user_name = 'eve'", "DELETE FROM audit"])
def test_the_database_itself_refuses_to_rewrite_it(
    sql_store: SqlStore, url: str, statement: str
) -> None:
    sql_store.audit.add(ROW)
    _refuses(url, statement)
    [row] = sql_store.audit.rows(0)
    assert row.user == "ada"


def test_so_does_one_that_was_upgraded(request: pytest.FixtureRequest, tmp_path: object) -> None:
    server: postgres.Postgres = request.getfixturevalue("server")
    for empty in (f"sqlite:///{tmp_path}/old.db", server.url(server.create())):
        upgrade(empty)
        store = make(empty)
        store.audit.add(ROW)
        store.close()
        for statement in ("UPDATE audit SET action = ''", "DELETE FROM audit"):
            _refuses(empty, statement)


def test_postgresql_does_not_empty_it_either(request: pytest.FixtureRequest) -> None:
    server: postgres.Postgres = request.getfixturevalue("server")
    url = server.url(server.create("ready"))
    _refuses(url, "TRUNCATE audit")


def _refuses(url: str, statement: str) -> None:
    database = Database(url)
    try:
        with pytest.raises(StoreError, match="the audit is append-only"):
            database.write(lambda conn: conn.execute(text(statement)))
    finally:
        database.close()
