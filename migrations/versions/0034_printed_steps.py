"""The numbers of steps that programs print which report none.

Revision: 0034
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    empty = sa.text("''")
    column = sa.Column("printed_steps", sa.Text(), nullable=False, server_default=empty)
    op.add_column("nodes", column)


def downgrade() -> None:
    op.drop_column("nodes", "printed_steps")
