"""Since when a job waits and a machine ends, and what people were told about that.

Revision: 0008
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

TIMES = (
    ("jobs", "waiting_since_us"),
    ("jobs", "waiting_told_us"),
    ("nodes", "terminating_at_us"),
    ("providers", "told_at_us"),
)


def upgrade() -> None:
    for table, name in TIMES:
        column = sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0"))
        op.add_column(table, column)


def downgrade() -> None:
    # Not in a batch: SQLite would make the table anew, which others refer to.
    for table, name in TIMES:
        op.drop_column(table, name)
