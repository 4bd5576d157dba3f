"""When the user of a job was told that its newest checkpoint is old.

Revision: 0011
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    name = "unsaved_told_us"
    column = sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0"))
    op.add_column("jobs", column)


def downgrade() -> None:
    # Not in a batch: SQLite would make the table anew, which others refer to.
    op.drop_column("jobs", "unsaved_told_us")
