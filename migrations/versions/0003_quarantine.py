"""Why no machine is ended for being unknown to this database.

Revision: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    column = sa.Column("quarantine", sa.Text(), nullable=False, server_default=sa.text("''"))
    op.add_column("deployment", column)
    if sa.inspect(op.get_bind()).has_table("restored"):  # by a restore, before there was a place
        op.execute("UPDATE deployment SET quarantine = (SELECT max(reason) FROM restored)")
        op.drop_table("restored")


def downgrade() -> None:
    with op.batch_alter_table("deployment") as table:
        table.drop_column("quarantine")
