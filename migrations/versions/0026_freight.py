"""How much of each job's data was brought to copies ahead of it, and read over mounts, by month.

Revision: 0026
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

AMOUNTS = (
    *("month_us", "bytes", "egress_microusd", "requests_microusd"),
    *("began_at_us", "staged_at_us", "gone_at_us"),
)


def upgrade() -> None:
    op.create_table(
        "freight",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False, server_default=sa.text("''")),
        *(
            sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0"))
            for name in AMOUNTS
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"]),
        sa.PrimaryKeyConstraint("job_id", "url", "node_id", "month_us"),
    )


def downgrade() -> None:
    op.drop_table("freight")
