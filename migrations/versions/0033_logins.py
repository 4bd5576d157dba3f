"""Tokens for the dashboard, and the sessions of people who have logged in there.

Revision: 0033
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "user_tokens",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        _flag("account"),
        _text("role"),
        sa.Column("digest", sa.Text(), nullable=False),
        _big("made_at_us"),
        _text("made_by"),
        _big("expires_at_us"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "login_sessions",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        _flag("account"),
        _text("role"),
        _text("token_id"),
        _big("began_at_us"),
        _big("expires_at_us"),
        sa.PrimaryKeyConstraint("digest"),
    )


def downgrade() -> None:
    op.drop_table("login_sessions")
    op.drop_table("user_tokens")


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=False, server_default=sa.text("''"))


def _big(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0"))


def _flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean(), nullable=False, server_default=sa.false())
