"""Machines that go on in another attempt, and how many it was begun with.

Revision: 0020
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    since = sa.Column("moved_at_us", sa.BigInteger(), nullable=False, server_default=sa.text("0"))
    op.add_column("nodes", since)
    size = sa.Column("gang_size", sa.Integer(), nullable=False, server_default=sa.text("0"))
    op.add_column("nodes", size)


def downgrade() -> None:
    op.drop_column("nodes", "gang_size")
    op.drop_column("nodes", "moved_at_us")
