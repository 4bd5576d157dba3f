"""By which key a machine is known whose cloud tells it.

Revision: 0013
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    column = sa.Column("host_public_key", sa.Text(), nullable=False, server_default=sa.text("''"))
    op.add_column("nodes", column)


def downgrade() -> None:
    op.drop_column("nodes", "host_public_key")
