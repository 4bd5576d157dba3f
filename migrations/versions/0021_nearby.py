"""How many bytes of a checkpoint are in a store of its machine's own region.

Revision: 0021
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    column = sa.Column("near_bytes", sa.BigInteger(), nullable=False, server_default=sa.text("0"))
    op.add_column("checkpoints", column)


def downgrade() -> None:
    op.drop_column("checkpoints", "near_bytes")
