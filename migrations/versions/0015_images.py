"""Baked images, and the machines whose disks they are made of.

Revision: 0015
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

TIMES = ("cleaned_at_us", "image_asked_at_us", "imaged_at_us")
TEXTS = ("image_id", "image_setup", "image_error")
EFFECTS = (
    *("launch", "resolve", "survey", "boot", "start", "release", "drain", "save", "read_head"),
    "terminate",
)
BEFORE_LAST = ("image",)
CHECK = "ck_nodes_effect"


def upgrade() -> None:
    for name in TIMES:
        op.add_column("nodes", _big(name))
    for name in TEXTS:
        op.add_column("nodes", _text(name))
    _allow(EFFECTS, (*EFFECTS[:-1], *BEFORE_LAST, EFFECTS[-1]))
    op.create_table(
        "images",
        sa.Column("node_id", sa.Text(), nullable=False),
        *(_key(name) for name in ("job_id", "name", "provider", "region", "vendor_name")),
        *(_text(name) for name in ("setup", "base", "version")),
        _big("asked_at_us"),
        _text("image_id"),
        sa.Column("size_gib", sa.Integer(), nullable=False, server_default=sa.text("0")),
        *(_big(name) for name in ("made_at_us", "unwanted_at_us", "gone_at_us")),
        sa.PrimaryKeyConstraint("node_id", name="pk_images"),
    )


def downgrade() -> None:
    op.drop_table("images")
    op.execute("UPDATE nodes SET effect = NULL WHERE effect = 'image'")
    _allow((*EFFECTS[:-1], *BEFORE_LAST, EFFECTS[-1]), EFFECTS)
    for name in (*TEXTS, *TIMES):
        op.drop_column("nodes", name)


def _allow(before: tuple[str, ...], after: tuple[str, ...]) -> None:
    """Have the constraint on nodes.effect know other values. SQLite alters a constraint only with a
    new table, and drops no table that others refer to: its own way for what changes no row is the
    text of the schema (sqlite.org/lang_altertable.html, "Making Other Kinds Of Schema Changes")."""
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
    return f"effect IN ({listed})"


def _big(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0"))


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=False, server_default=sa.text("''"))


def _key(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=False)
