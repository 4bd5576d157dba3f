"""Why no machine is ended for being unknown to this database.

Revision: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    column = sa.Column("quarantine", sa.Text(), nullable=False, server_default=sa.text("''"))
    op.add_column("deployment", column)


def downgrade() -> None:
    with op.batch_alter_table("deployment") as table:
        table.drop_column("quarantine")
