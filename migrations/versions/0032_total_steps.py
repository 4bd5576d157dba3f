"""The number of steps of the whole run, as the program names it.

Revision: 0032
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    zero = sa.text("0")
    column = sa.Column("total_steps", sa.BigInteger(), nullable=False, server_default=zero)
    op.add_column("nodes", column)


def downgrade() -> None:
    op.drop_column("nodes", "total_steps")
