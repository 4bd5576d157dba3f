"""A sealed value that tells the master key of the deployment.

Revision: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("deployment", sa.Column("key_check", sa.LargeBinary(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("deployment") as table:
        table.drop_column("key_check")
