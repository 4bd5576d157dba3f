"""How many bytes of a checkpoint an earlier one had uploaded.

Revision: 0028
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    column = sa.Column("shared_bytes", sa.BigInteger(), nullable=False, server_default=sa.text("0"))
    op.add_column("checkpoints", column)


def downgrade() -> None:
    op.drop_column("checkpoints", "shared_bytes")
