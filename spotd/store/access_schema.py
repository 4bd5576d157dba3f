"""The tables about people: who did what, which secrets they had spotd keep, who is shut out, and
whom machines let in.

The record of who did what is append-only: triggers on either database refuse to change or delete a
row, whoever asks, so that not even a bug of spotd rewrites it.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    ForeignKey,
    Index,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    event,
    text,
)

from spotd.store.columns import big, key, metadata, one_of, words
from spotd.store.records import AuditOutcome

audit = Table(
    "audit",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    big("at_us"),
    Column("uid", BigInteger, nullable=False, server_default=text("-1")),
    words("user_name"),
    key("action"),
    words("target"),
    key("outcome"),
    words("text"),
    words("request"),
    one_of("outcome", AuditOutcome),
)
Index("ix_audit_at", audit.c.at_us)

kept_secrets = Table(
    "kept_secrets",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", LargeBinary, nullable=False),
    big("set_at_us"),
    words("set_by"),
)

disabled_users = Table(
    "disabled_users",
    metadata,
    Column("name", Text, primary_key=True),
    Column("uid", BigInteger, nullable=False, server_default=text("-1")),
    big("disabled_at_us"),
    words("disabled_by"),
    words("successor"),
)

# Whose key a machine was given; 0 as long as it may still be there.
admissions = Table(
    "admissions",
    metadata,
    Column("node_id", Text, ForeignKey("nodes.id"), nullable=False),
    key("user_name"),
    big("admitted_at_us"),
    big("dismissed_at_us"),
    PrimaryKeyConstraint("node_id", "user_name"),
)
Index("ix_admissions_user", admissions.c.user_name)

_SQLITE = """
CREATE TRIGGER audit_append_only_{verb} BEFORE {verb} ON audit
BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END
"""
_POSTGRESQL = (
    """
    CREATE FUNCTION audit_append_only() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'the audit is append-only'; END $$
    """,
    """
    CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
    FOR EACH STATEMENT EXECUTE FUNCTION audit_append_only()
    """,
)
APPEND_ONLY = {
    "sqlite": tuple(_SQLITE.format(verb=verb) for verb in ("UPDATE", "DELETE")),
    "postgresql": _POSTGRESQL,
}


def _make_append_only(_table: Table, conn: Connection, **_: object) -> None:
    for statement in APPEND_ONLY[conn.dialect.name]:
        conn.execute(text(statement))


def _drop_function(_table: Table, conn: Connection, **_: object) -> None:
    if conn.dialect.name == "postgresql":
        conn.execute(text("DROP FUNCTION IF EXISTS audit_append_only() CASCADE"))


event.listen(audit, "after_create", _make_append_only)
event.listen(audit, "before_drop", _drop_function)
