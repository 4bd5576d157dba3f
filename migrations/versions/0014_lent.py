"""Until when a machine has credentials of its job's store.

Revision: 0014
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

TIMES = ("lent_at_us", "lent_until_us")


def upgrade() -> None:
    for name in TIMES:
        column = sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0"))
        op.add_column("nodes", column)


def downgrade() -> None:
    for name in TIMES:
        op.drop_column("nodes", name)
