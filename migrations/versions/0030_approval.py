"""Who asked for a job to exceed a budget, while another person has not approved it.

Revision: 0030
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("approval_asked_by", "approval_text"):
        op.add_column(
            "jobs", sa.Column(name, sa.Text(), nullable=False, server_default=sa.text("''"))
        )


def downgrade() -> None:
    op.drop_column("jobs", "approval_text")
    op.drop_column("jobs", "approval_asked_by")
