"""The cause of a failure, and the part that failed.

Revision: 0031
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("exit_cause", "failed_part"):
        column = sa.Column(name, sa.Text(), nullable=False, server_default=sa.text("''"))
        op.add_column("nodes", column)


def downgrade() -> None:
    op.drop_column("nodes", "failed_part")
    op.drop_column("nodes", "exit_cause")
