"""What the checkpoints of each job cost by month, beside its machines.

Revision: 0024
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

AMOUNTS = ("month_us", "microusd", "microusd_per_h", "at_us")


def upgrade() -> None:
    op.create_table(
        "carriage",
        sa.Column("job_id", sa.Text(), nullable=False),
        *(
            sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0"))
            for name in AMOUNTS
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"]),
        sa.PrimaryKeyConstraint("job_id", "month_us"),
    )
    column = sa.Column(
        "removed_at_us", sa.BigInteger(), nullable=False, server_default=sa.text("0")
    )
    op.add_column("checkpoints", column)


def downgrade() -> None:
    op.drop_table("carriage")
    op.drop_column("checkpoints", "removed_at_us")
