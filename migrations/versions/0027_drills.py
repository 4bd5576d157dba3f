"""Drills, and the machines that they strike.

Revision: 0027
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

BEFORE = (
    *("preempted", "lost", "boot_timeout", "capacity", "failed", "done", "cancelled", "outbid"),
    *("moved", "hedge_lost"),
)
AFTER = (*BEFORE, "drill")
CHECK = "ck_nodes_leave_reason"
KINDS = ("sigterm", "notice", "kill", "agent", "machine")
ENDS = ("passed", "failed", "called_off")
TIMES = ("asked_at_us", "aimed_at_us", "struck_at_us", "ended_at_us")


def upgrade() -> None:
    _allow(BEFORE, AFTER)
    op.add_column("nodes", _text("drill"))
    op.create_table(
        "drills",
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("id", "job_id", "kind")),
        *(_text(name) for name in ("actor", "node_id", "text", "found")),
        *(
            sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0"))
            for name in TIMES
        ),
        sa.Column("within_s", sa.Float(53), nullable=False, server_default=sa.text("0")),
        sa.Column("outcome", sa.Text()),
        sa.CheckConstraint(_among("kind", KINDS), name=op.f("ck_drills_kind")),
        sa.CheckConstraint(_among("outcome", ENDS), name=op.f("ck_drills_outcome")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    where = sa.text("ended_at_us = 0")
    op.create_index(
        *("uq_drills_open", "drills", ["job_id"]),
        unique=True,
        sqlite_where=where,
        postgresql_where=where,
    )


def downgrade() -> None:
    op.drop_table("drills")
    op.drop_column("nodes", "drill")
    op.execute("UPDATE nodes SET leave_reason = 'cancelled' WHERE leave_reason = 'drill'")
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


def _condition(values: tuple[str, ...]) -> str:
    return _among("leave_reason", values)


def _among(column: str, values: tuple[str, ...]) -> str:
    listed = ", ".join(f"'{value}'" for value in values)
    return f"{column} IN ({listed})"


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=False, server_default=sa.text("''"))
