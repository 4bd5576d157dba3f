"""Which version of the wire each machine's agent speaks.

Revision: 0009
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    column = sa.Column("wire", sa.BigInteger(), nullable=False, server_default=sa.text("0"))
    op.add_column("nodes", column)


def downgrade() -> None:
    op.drop_column("nodes", "wire")
