"""An append-only record of who did what.

Revision: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_OUTCOMES = "outcome IN ('asked', 'done', 'refused', 'failed')"
# As they were when this was written: a later schema may have others.
_APPEND_ONLY = {
    "sqlite": tuple(
        f"""
CREATE TRIGGER audit_append_only_{verb} BEFORE {verb} ON audit
BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END
"""
        for verb in ("UPDATE", "DELETE")
    ),
    "postgresql": (
        """
    CREATE FUNCTION audit_append_only() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'the audit is append-only'; END $$
    """,
        """
    CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
    FOR EACH STATEMENT EXECUTE FUNCTION audit_append_only()
    """,
    ),
}


def _words(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=False, server_default=sa.text("''"))


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        sa.Column("uid", sa.BigInteger(), nullable=False, server_default=sa.text("-1")),
        _words("user_name"),
        sa.Column("action", sa.Text(), nullable=False),
        _words("target"),
        sa.Column("outcome", sa.Text(), nullable=False),
        _words("text"),
        _words("request"),
        sa.CheckConstraint(_OUTCOMES, name=op.f("ck_audit_outcome")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index("ix_audit_at", "audit", ["at_us"])
    for statement in _APPEND_ONLY[op.get_bind().dialect.name]:
        op.execute(statement)


def downgrade() -> None:
    op.drop_table("audit")  # its triggers go with it
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION audit_append_only()")
