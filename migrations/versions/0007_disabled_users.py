"""Users who are shut out, and whom machines let in.

Revision: 0007
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def _words(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=False, server_default=sa.text("''"))


def _big(name: str, default: str = "0") -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text(default))


def upgrade() -> None:
    op.create_table(
        "disabled_users",
        sa.Column("name", sa.Text(), nullable=False),
        _big("uid", "-1"),
        _big("disabled_at_us"),
        _words("disabled_by"),
        _words("successor"),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_disabled_users")),
    )
    op.create_table(
        "admissions",
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("user_name", sa.Text(), nullable=False),
        _big("admitted_at_us"),
        _big("dismissed_at_us"),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_admissions_node_id")),
        sa.PrimaryKeyConstraint("node_id", "user_name", name=op.f("pk_admissions")),
    )
    op.create_index("ix_admissions_user", "admissions", ["user_name"])


def downgrade() -> None:
    op.drop_table("admissions")
    op.drop_table("disabled_users")
