"""What evaluations of a job's model measured.

Revision: 0025
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

NUMBERS = (
    *(("at_us", sa.BigInteger()), ("cases", sa.BigInteger()), ("passed", sa.BigInteger())),
    *((name, sa.Float(53)) for name in ("tokens_per_s", "ttft_s", "ttft_p95_s")),
)


def upgrade() -> None:
    op.create_table(
        "evaluations",
        sa.Column("job_id", sa.Text(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("digest", "suite")),
        *(
            sa.Column(name, kind, nullable=False, server_default=sa.text("0"))
            for name, kind in NUMBERS
        ),
        *(
            sa.Column(name, sa.Text(), nullable=False, server_default=sa.text("''"))
            for name in ("failed", "source")
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"]),
        sa.PrimaryKeyConstraint("job_id", "digest"),
    )


def downgrade() -> None:
    op.drop_table("evaluations")
