"""Who waits for room under the limits and since when, who gives its machines to whom; and how many
machines projects may have.

Revision: 0022
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

NUMBERS = (
    *("room_since_us", "room_asked_us", "room_microusd_per_h"),
    *("yields_since_us", "yielded_at_us"),
)
WORDS = (("jobs", "yields_to"), ("deployment", "projects"))
WHERE = sa.text("room_asked_us > 0")


def upgrade() -> None:
    for name in NUMBERS:
        number = sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0"))
        op.add_column("jobs", number)
    for table, name in WORDS:
        column = sa.Column(name, sa.Text(), nullable=False, server_default=sa.text("''"))
        op.add_column(table, column)
    op.create_index(
        "ix_jobs_room", "jobs", ["room_asked_us"], sqlite_where=WHERE, postgresql_where=WHERE
    )


def downgrade() -> None:
    op.drop_index("ix_jobs_room", "jobs")
    for table, name in reversed(WORDS):
        op.drop_column(table, name)
    for name in reversed(NUMBERS):
        op.drop_column("jobs", name)
