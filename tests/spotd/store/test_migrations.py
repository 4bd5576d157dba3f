"""Every migration up and down, on both databases, with a deployment's data in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import Connection, MetaData, inspect, select, text

from providers.base import Scope
from spotd.domain.evaluation import Evaluation
from spotd.domain.events import AuditOutcome, Event
from spotd.domain.fault_drill import DrillKind, FaultDrill
from spotd.domain.units import S
from spotd.store import schema
from spotd.store.audit import AuditRow
from spotd.store.codec import decode_spec, encode
from spotd.store.engine import Database
from spotd.store.errors import SchemaVersionError, StoreError
from spotd.store.evaluations import EvaluationRow
from spotd.store.images import ImageRow
from spotd.store.logins import LoginSession, UserToken
from spotd.store.secrets import SecretRow
from spotd.store.storage_costs import StorageCost
from spotd.store.transfers import DataTransfer
from spotd.store.users import DisabledUser
from spotd.store.version import HEAD, downgrade, revision_of, upgrade
from tests.fixtures import postgres
from tests.spotd.store.build import (
    NOW,
    instance,
    new_node,
    offer,
    placed,
    said,
    submission,
    submit,
    view,
)
from tests.spotd.store.conftest import make
from tests.spotd.store.test_version import _objects

# Revisions that take something away which no spotd of the revision before used any more.
CONTRACTIONS: frozenset[str] = frozenset()
STEPS = list(pairwise(schema.REVISIONS))
OLDEST = schema.REVISIONS[0]

# What a machine says of its life.
LIFE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("hello", {"agent": "1", "wire": 1}),
    ("claimed", {"step": 0, "manifest": ""}),
    ("progress", {"from_step": 1, "to_step": 2, "losses": [0.5, 0.25], "tokens": 9, "busy_s": 2.0}),
    ("checkpoint", {"step": 2, "manifest": "m2", "bytes": 10, "trigger": "steps", "write_s": 0.5}),
    (
        "outputs",
        {
            "status": "stored",
            "manifest": "o1",
            "digest": "d",
            "files": 2,
            "bytes": 9,
            "new_bytes": 5,
        },
    ),
    ("notice", {"notice_id": "n1", "kind": "preempt", "remaining_s": 30.0, "source": "imds"}),
)

Rows = dict[str, list[dict[str, Any]]]
Columns = dict[str, dict[str, Any]]


@pytest.fixture
def full_url(url: str) -> str:
    """A database in which something is in every table."""
    store = make(url)
    store.secrets.store_key_check(b"\x01check")
    store.market.record_offers("aws", [offer(), offer("aws-1b", 12)], NOW)
    store.market.record_offers("aws", [offer(), offer("aws-1b", 13)], NOW + S)
    store.market.record_provider("aws", "refused", NOW)
    placed(store, "j1", new_node(number=0))
    store.nodes.record_launched("j1-g1-0", "i-1", NOW)
    listed = instance(view(store).nodes[0], "i-1", private_host="10.0.0.1")
    store.instances.record_listing("aws", [listed], NOW, NOW)
    store.ledger.record_invoiced({store.ledger.segments()[0].id: 5}, NOW)
    measured = Evaluation("helpdesk", 3, 2, 810.5, 0.25, 0.5, ("c2",))
    store.evaluations.record(EvaluationRow("j1", NOW, "ada", measured))
    drill = FaultDrill("d1", "j1", DrillKind.KILL, "ada", NOW)
    store.drills.update(replace(store.drills.add(drill), node_id="j1-g1-0", aimed_at_us=NOW))
    store.storage_costs.record(StorageCost("j1", NOW, 7, 3, NOW))
    store.transfers.add(DataTransfer("j1", "gs://c", "", NOW, 7, 3, 1, NOW))
    store.journal.record([said(*LIFE)])
    store.logs.record_offset("j1-g1-0", "rank0", 7)
    store.leases.take("alerts", "me", lambda: NOW, S)
    store.jobs.submit(submission("j2", secrets={"A": b"sealed"}), NOW)
    placed(store, "j3", new_node("j3"))
    store.nodes.record_launch_refused("j3-g1-0", "NoCapacity", "there is none", Scope.OFFER, NOW)
    store.events.add("j1", Event("lost", "it is gone", alert=True), NOW)
    store.deployment.set_quarantine("restored", NOW)
    store.audit.add(AuditRow(NOW, 7, "ada", "cancel", "j1", AuditOutcome.DONE))
    store.secrets.put(SecretRow("A", NOW, "ada"), b"sealed", 0)
    store.users.disable(DisabledUser("bob", -1, NOW, "ada"))
    store.users.add_admission("j1-g1-0", "bob", NOW)
    store.logins.add_token(UserToken("t1", "ada", True, "viewer", "d", NOW, "ada", NOW + S))
    store.logins.begin_session(LoginSession("d", "ada", True, "viewer", "t1", NOW, NOW + S))
    store.images.adopt(ImageRow("j1-g1-0", "j1", "torch", "aws", "aws-1", "spotd-torch-1"))
    store.close()
    return url


@pytest.fixture
def database(full_url: str) -> Iterator[Database]:
    opened = Database(full_url)
    yield opened
    opened.close()


def _rows(conn: Connection) -> Rows:
    metadata = MetaData()
    metadata.reflect(conn)
    return {
        table.name: sorted((dict(row) for row in conn.execute(select(table)).mappings()), key=repr)
        for table in metadata.sorted_tables
        if table.name != "alembic_version"
    }


def _columns(conn: Connection) -> Columns:
    found = inspect(conn)
    return {
        table: {column["name"]: column for column in found.get_columns(table)}
        for table in found.get_table_names()
    }


def _shared(rows: Rows, columns: Columns) -> Rows:
    """What fits into these columns."""
    return {
        table: sorted(({n: row[n] for n in row if n in columns[table]} for row in kept), key=repr)
        for table, kept in rows.items()
        if table in columns
    }


def test_each_step_back_and_forth_keeps_all_that_both_schemas_know(
    full_url: str, database: Database
) -> None:
    at_head, rows = database.read(_objects), database.read(_rows)
    assert [table for table, kept in rows.items() if not kept] == [], "nothing to lose there"
    for table, column in (("nodes", "private_host"), ("segments", "invoiced_microusd")):
        assert any(row[column] for row in rows[table]), f"nothing to lose in {table}.{column}"
    for older in reversed(schema.REVISIONS[:-1]):
        downgrade(full_url, older)
        columns = database.read(_columns)
        assert database.read(_rows) == _shared(rows, columns), f"down to {older}"
    assert upgrade(full_url) == (OLDEST, HEAD)
    columns = database.read(_columns)
    back = database.read(_rows)
    downgrade(full_url, OLDEST)
    oldest = database.read(_columns)
    upgrade(full_url)
    assert _shared(back, oldest) == _shared(rows, oldest)
    assert database.read(_objects) == at_head
    store = make(full_url)
    assert [job.id for job in store.jobs.rows()] == ["j1", "j2", "j3"]
    life = view(store).nodes[0]
    assert (life.training.last_step, life.startup.hello_at_us > 0, len(life.notices)) == (
        2,
        True,
        1,
    )
    store.close()


@pytest.mark.parametrize(("older", "newer"), STEPS)
def test_a_step_only_adds_and_what_it_adds_has_a_default(
    full_url: str, database: Database, older: str, newer: str
) -> None:
    """So the spotd before it writes to it as before: the way back is always open."""
    downgrade(full_url, older)
    before = database.read(_columns)
    upgrade(full_url)
    downgrade(full_url, newer)
    after = database.read(_columns)
    if newer not in CONTRACTIONS:
        assert before.keys() <= after.keys()
    for table, columns in before.items():
        if newer in CONTRACTIONS:
            continue
        assert columns.keys() <= after[table].keys(), f"{newer} takes something from {table}"
        added = [after[table][name] for name in after[table].keys() - columns.keys()]
        bare = [c["name"] for c in added if not c["nullable"] and c["default"] is None]
        assert bare == [], f"{newer} adds to {table} what the spotd before it does not fill"


def test_what_a_job_comes_after_is_forgotten_once_it_has_finished(
    full_url: str, database: Database
) -> None:
    """The spotd before 0024 reads no job of a database in which one has it."""
    store = make(full_url)
    envs = {"after": "x", "B": '"after":'}
    submit(store, "j4", after="j1", envs=envs)
    submit(store, "j5", envs=envs)
    store.close()
    before = database.read(_rows)
    with pytest.raises(StoreError, match=r"not finished: j4 \(j4\): start this spotd again"):
        downgrade(full_url, OLDEST)
    assert database.read(_rows) == before
    assert database.read(revision_of) == HEAD
    ended = "UPDATE jobs SET outcome = 'cancelled', finished_at_us = 1 WHERE id = 'j4'"
    database.write(lambda c: c.execute(text(ended)))
    downgrade(full_url, "0023")
    jobs = {row["id"]: decode_spec(row["spec"]) for row in database.read(_rows)["jobs"]}
    assert (jobs["j4"].queue.after, jobs["j4"].program.envs) == ("", envs)
    stored = {row["id"]: row["spec"] for row in database.read(_rows)["jobs"]}
    assert stored["j4"] == encode(jobs["j4"]), "without the key"
    assert {j: stored[j] for j in ("j1", "j2", "j3", "j5")} == {
        row["id"]: row["spec"] for row in before["jobs"] if row["id"] != "j4"
    }


@pytest.mark.parametrize("asked", ["0000", "9999", ""])
def test_a_schema_that_was_never_there_is_refused(full_url: str, asked: str) -> None:
    with pytest.raises(SchemaVersionError, match=rf"name one of {OLDEST}, "):
        downgrade(full_url, asked)


def test_a_database_that_is_too_new_or_empty_is_not_brought_back(
    full_url: str, server: postgres.Postgres
) -> None:
    with pytest.raises(SchemaVersionError, match="newer spotd"):
        downgrade(server.url(server.create()), OLDEST)
    database = Database(full_url)
    database.write(lambda c: c.execute(text("UPDATE alembic_version SET version_num = '9999'")))
    database.close()
    with pytest.raises(SchemaVersionError, match=r"9999.*newer spotd"):
        downgrade(full_url, OLDEST)
