"""What an invoice said that a segment of the ledger cost.

Revision: 0017
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

NAMES = ("reconciled_at_us", "invoiced_microusd")


def upgrade() -> None:
    for name in NAMES:
        column = sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0"))
        op.add_column("segments", column)


def downgrade() -> None:
    for name in reversed(NAMES):
        op.drop_column("segments", name)
