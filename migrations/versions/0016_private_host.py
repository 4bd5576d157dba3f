"""Where a machine is reached from its own network.

Revision: 0016
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    column = sa.Column("private_host", sa.Text(), nullable=False, server_default=sa.text("''"))
    op.add_column("nodes", column)


def downgrade() -> None:
    op.drop_column("nodes", "private_host")
