"""Since when a machine is missing from the listings of its cloud.

Revision: 0010
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    name = "missed_at_us"
    column = sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0"))
    op.add_column("nodes", column)


def downgrade() -> None:
    op.drop_column("nodes", "missed_at_us")
