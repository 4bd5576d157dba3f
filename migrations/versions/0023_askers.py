"""When a job for which no offer was to be had asks again.

Revision: 0023
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

WHERE = sa.text("offers_at_us > 0")


def upgrade() -> None:
    number = sa.Column("offers_at_us", sa.BigInteger(), nullable=False, server_default=sa.text("0"))
    op.add_column("jobs", number)
    op.create_index(
        "ix_jobs_offers", "jobs", ["offers_at_us"], sqlite_where=WHERE, postgresql_where=WHERE
    )


def downgrade() -> None:
    op.drop_index("ix_jobs_offers", "jobs")
    op.drop_column("jobs", "offers_at_us")
