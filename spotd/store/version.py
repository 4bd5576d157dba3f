"""The schema version of a database: an empty one is created, an old one is upgraded on request."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection, inspect, select, text

from spotd.domain.units import S
from spotd.store import columns, schema
from spotd.store.engine import Database
from spotd.store.errors import SchemaVersionError, StoreError
from spotd.store.leases import holders

HEAD = schema.REVISIONS[-1]
_LOCK = 7_078_468_100  # an advisory lock of our own: two daemons may find an empty database


def prepare(database: Database, name: Callable[[], str], now: Callable[[], int]) -> str:
    """Create an empty database, or check an existing one; returns the deployment's id.

    Raises SchemaVersionError for a schema that is older or newer than this program's.
    """
    if database.read(revision_of) is None:
        database.write(_create)
    revision = database.read(revision_of)
    _check_head(database.place, revision or "")
    return database.read(_deployment) or database.write(lambda conn: _name(conn, name(), now()))


def upgrade(url: str, now_us: int | None = None) -> tuple[str, str]:
    """Bring the database at `url` to this program's schema; returns (revision before, revision
    after).

    One transaction: a failure or a kill leaves the schema as it was. Raises StoreError; with
    `now_us` also while a daemon holds a lease in it. Without, no daemon may use it.
    """
    database = Database(url)
    try:
        before = database.read(revision_of)
        if before is not None:
            check_known(f"the database {database.place}", before)
        if before != HEAD:
            database.write(lambda conn: _migrate(conn, now_us))
        return before or "", HEAD
    finally:
        database.close()


def downgrade(url: str, revision: str, now_us: int | None = None) -> tuple[str, str]:
    """Bring the database at `url` back to an older schema; returns (revision before, revision
    after).

    Data that only newer schemas hold is lost. One transaction; raises StoreError; `now_us` as in
    `upgrade`.
    """
    database = Database(url)
    try:
        before = database.read(revision_of)
        before = before or ""
        check_known(f"the database {database.place}", before)
        older = schema.REVISIONS[: schema.REVISIONS.index(before) + 1]
        if revision not in older:
            raise SchemaVersionError(
                f"the database {database.place} has schema {before}, and {revision!r} is none "
                f"before it: name one of {', '.join(older)}"
            )
        if revision != before:
            database.write(lambda conn: _migrate(conn, now_us, revision))
        return before, revision
    finally:
        database.close()


def check_known(what: str, revision: str) -> None:
    """Check that the schema `revision` of `what` is known. Raises SchemaVersionError."""
    if revision not in schema.REVISIONS:
        raise SchemaVersionError(
            f"{what} has schema {revision!r}, which this spotd (schema {HEAD}) does not "
            "know: install the newer spotd that wrote it"
        )


def _check_head(place: str, revision: str) -> None:
    check_known(f"the database {place}", revision)
    if revision != HEAD:
        raise SchemaVersionError(
            f"the database {place} has schema {revision}, this spotd needs {HEAD}: "
            "stop every spotd that uses it, make a copy, and run `spotd db upgrade`"
        )


def revision_of(conn: Connection) -> str | None:
    """The schema's revision; None for an empty database."""
    tables = inspect(conn).get_table_names()
    if not tables:
        return None
    place = conn.engine.url.render_as_string(hide_password=True)
    if "alembic_version" not in tables:
        text_ = f"the database {place} holds tables that are not spotd's"
        raise StoreError(f"{text_}: use a database that only spotd uses")
    revisions = conn.execute(text("SELECT version_num FROM alembic_version")).scalars().all()
    if len(revisions) > 1:
        named = " and ".join(sorted(map(str, revisions)))
        raise StoreError(f"the database {place} names {named} as its schema: restore a backup")
    return str(revisions[0] or "") if revisions else ""


def _check_free(conn: Connection, now_us: int) -> None:
    """Check that no daemon holds a lease. Raises StoreError."""
    for holder, until_us in holders(conn, now_us).items():
        left_s = math.ceil((until_us - now_us) / S)
        raise StoreError(
            f"the database {conn.engine.url.render_as_string(hide_password=True)} is in use by "
            f"the spotd {holder}: stop it first; of one that was killed, the lease ends in "
            f"{left_s} s: try again then"
        )


def _lock(conn: Connection) -> None:
    if conn.dialect.name == "postgresql":
        conn.execute(text("SET LOCAL statement_timeout = 0"))
        conn.execute(text("SET LOCAL lock_timeout = '30s'"))
        conn.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})


def _create(conn: Connection) -> None:
    _lock(conn)
    if revision_of(conn) is not None:
        return  # another process was faster
    columns.metadata.create_all(conn)
    _add_counters(conn)
    conn.execute(
        text(
            "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, "
            "CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
        )
    )
    conn.execute(text("INSERT INTO alembic_version VALUES (:head)"), {"head": HEAD})


def _add_counters(conn: Connection) -> None:
    """Add the missing counters: migrations may have created the database as well."""
    known = set(conn.execute(select(schema.counters.c.name)).scalars())
    rows = [{"name": name, "value": 0} for name in ("ids", "market", "offers") if name not in known]
    if rows:
        conn.execute(schema.counters.insert(), rows)


def _migrate(conn: Connection, now_us: int | None, older: str = "") -> None:
    # Imported here: the daemon itself never needs alembic.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    import migrations  # noqa: PLC0415

    _lock(conn)
    if conn.dialect.name == "postgresql":
        # A change of a large table takes longer than any statement of the daemon may, and between
        # two statements alembic works here.
        conn.execute(text("SET LOCAL statement_timeout = 0"))
        conn.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
    if now_us is not None and inspect(conn).has_table(schema.duties.name):
        _check_free(conn, now_us)
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["connection"] = conn
    if older:
        command.downgrade(config, older)
    else:
        command.upgrade(config, "head")
        _add_counters(conn)


def _deployment(conn: Connection) -> str | None:
    row = conn.execute(schema.deployment.select()).one_or_none()
    return None if row is None else str(row.name)


def _name(conn: Connection, name: str, now_us: int) -> str:
    _lock(conn)
    current = _deployment(conn)
    if current is None:
        row = {"id": 1, "name": name, "created_at_us": now_us}
        conn.execute(schema.deployment.insert().values(**row))
        current = name
    return current
