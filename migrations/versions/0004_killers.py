"""Until when each machine may go on without us, and what became of its disks.

Revision: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

TIMES = ("expires_at_us", "renewed_until_us", "wiped_at_us")


def upgrade() -> None:
    for name in TIMES:
        column = sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0"))
        op.add_column("nodes", column)
    text = sa.Column("wiped_text", sa.Text(), nullable=False, server_default=sa.text("''"))
    op.add_column("nodes", text)


def downgrade() -> None:
    # Not in a batch: SQLite would make the table anew, which others refer to.
    for name in (*TIMES, "wiped_text"):
        op.drop_column("nodes", name)
