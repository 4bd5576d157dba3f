"""Which schema a database has: a new one is created, an old one is upgraded on request only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection, inspect, select, text

from spotd.store import schema
from spotd.store.base import SchemaVersionError, StoreError
from spotd.store.engine import Database

HEAD = schema.REVISIONS[-1]
_LOCK = 7_078_468_100  # an advisory lock of our own: two daemons may find an empty database


def prepare(database: Database, name: Callable[[], str], now: Callable[[], int]) -> str:
    """Create an empty database, check any other; the deployment's id.

    Raises SchemaVersionError for a schema that is older or newer than this program's.
    """
    if database.read(revision_of) is None:
        database.write(_create)
    found = database.read(revision_of)
    if found != HEAD:
        raise SchemaVersionError(_advice(database.place, found or ""))
    return database.read(_deployment) or database.write(lambda conn: _name(conn, name(), now()))


def upgrade(url: str) -> tuple[str, str]:
    """Bring the database at `url` to this program's schema; (revision before, revision after).

    One transaction: a failure or a kill leaves the schema as it was. Raises StoreError.
    """
    database = Database(url)
    try:
        before = database.read(revision_of)
        if before is not None and before not in schema.REVISIONS:
            raise SchemaVersionError(_advice(database.place, before))
        if before != HEAD:
            database.write(_migrate)
        return before or "", HEAD
    finally:
        database.close()


def downgrade(url: str, revision: str) -> tuple[str, str]:
    """Bring the database at `url` back to an older schema of ours, for the older spotd that has it;
    (revision before, revision after). What only newer ones know is lost. One transaction; raises
    StoreError."""
    database = Database(url)
    try:
        before = database.read(revision_of)
        if before not in schema.REVISIONS:
            raise SchemaVersionError(_advice(database.place, before or ""))
        older = schema.REVISIONS[: schema.REVISIONS.index(before) + 1]
        if revision not in older:
            raise SchemaVersionError(
                f"the database {database.place} has schema {before}, and {revision!r} is none "
                f"before it: name one of {', '.join(older)}"
            )
        if revision != before:
            database.write(lambda conn: _migrate(conn, revision))
        return before, revision
    finally:
        database.close()


def _advice(place: str, found: str) -> str:
    if found in schema.REVISIONS:
        return (
            f"the database {place} has schema {found}, this spotd needs {HEAD}: "
            "stop every spotd that uses it, make a copy, and run `spotd db upgrade`"
        )
    return (
        f"the database {place} has schema {found!r}, which this spotd (schema {HEAD}) does not "
        "know: install the newer spotd that wrote it"
    )


def revision_of(conn: Connection) -> str | None:
    """The schema's revision; None for an empty database."""
    tables = inspect(conn).get_table_names()
    if not tables:
        return None
    if "alembic_version" not in tables:
        text_ = f"the database {conn.engine.url.render_as_string(hide_password=True)} holds tables"
        raise StoreError(f"{text_} that are not spotd's: give spotd a database of its own")
    found = conn.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
    return str(found or "")


def _lock(conn: Connection) -> None:
    if conn.dialect.name == "postgresql":
        conn.execute(text("SET LOCAL statement_timeout = 0"))
        conn.execute(text("SET LOCAL lock_timeout = '30s'"))
        conn.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})


def _create(conn: Connection) -> None:
    _lock(conn)
    if revision_of(conn) is not None:
        return  # another process was faster
    schema.metadata.create_all(conn)
    _add_counters(conn)
    conn.execute(
        text(
            "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, "
            "CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
        )
    )
    conn.execute(text("INSERT INTO alembic_version VALUES (:head)"), {"head": HEAD})


def _add_counters(conn: Connection) -> None:
    """Those that are not there yet: an empty database may be brought here by migrations as well."""
    known = set(conn.execute(select(schema.counters.c.name)).scalars())
    rows = [{"name": name, "value": 0} for name in ("ids", "market", "offers") if name not in known]
    if rows:
        conn.execute(schema.counters.insert(), rows)


def _migrate(conn: Connection, older: str = "") -> None:
    # Imported here: the daemon itself never needs alembic.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    import migrations  # noqa: PLC0415

    _lock(conn)
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["connection"] = conn
    if older:
        command.downgrade(config, older)
    else:
        command.upgrade(config, "head")
        _add_counters(conn)


def _deployment(conn: Connection) -> str | None:
    found = conn.execute(schema.deployment.select()).one_or_none()
    return None if found is None else str(found.name)


def _name(conn: Connection, name: str, now_us: int) -> str:
    _lock(conn)
    found = _deployment(conn)
    if found is None:
        row = {"id": 1, "name": name, "created_at_us": now_us}
        conn.execute(schema.deployment.insert().values(**row))
        found = name
    return found
