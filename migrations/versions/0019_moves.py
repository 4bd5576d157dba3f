"""Machines that were left because another place does better, and may be asked for again.

Revision: 0019
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

BEFORE = (
    *("preempted", "lost", "boot_timeout", "capacity", "failed", "done", "cancelled", "outbid"),
    "hedge_lost",
)
AFTER = (*BEFORE[:-1], "moved", BEFORE[-1])
CHECK = "ck_nodes_leave_reason"


def upgrade() -> None:
    _allow(BEFORE, AFTER)


def downgrade() -> None:
    op.execute("UPDATE nodes SET leave_reason = 'outbid' WHERE leave_reason = 'moved'")
    _allow(AFTER, BEFORE)


def _allow(before: tuple[str, ...], after: tuple[str, ...]) -> None:
    """Have the constraint know other values. SQLite alters a constraint only with a new table, and
    drops no table that others refer to: its own way for what changes no row is the text of the
    schema (sqlite.org/lang_altertable.html, "Making Other Kinds Of Schema Changes")."""
    if op.get_bind().dialect.name != "sqlite":
        op.drop_constraint(op.f(CHECK), "nodes", type_="check")
        op.create_check_constraint(op.f(CHECK), "nodes", _condition(after))
        return
    connection = op.get_bind()
    version = connection.execute(sa.text("PRAGMA schema_version")).scalar_one()
    old, new = f"CHECK ({_condition(before)})", f"CHECK ({_condition(after)})"
    op.execute("PRAGMA writable_schema = ON")
    changed = connection.execute(
        sa.text(
            "UPDATE sqlite_master SET sql = replace(sql, :old, :new)"
            " WHERE type = 'table' AND name = 'nodes' AND instr(sql, :old) > 0"
        ),
        {"old": old, "new": new},
    ).rowcount
    op.execute("PRAGMA writable_schema = RESET")
    op.execute(f"PRAGMA schema_version = {version + 1}")
    if changed != 1:
        raise RuntimeError(f"the table nodes has no constraint {old}")


def _condition(values: tuple[str, ...]) -> str:
    listed = ", ".join(f"'{value}'" for value in values)
    return f"leave_reason IN ({listed})"


def _big(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0"))


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=False, server_default=sa.text("''"))


def _key(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=False)
