"""Since when the disk of a machine is known to stay full.

Revision: 0012
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    name = "disk_full_at_us"
    column = sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0"))
    op.add_column("nodes", column)


def downgrade() -> None:
    op.drop_column("nodes", "disk_full_at_us")
