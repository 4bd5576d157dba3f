"""Secrets that the deployment keeps, and the number of the master key in force.

Revision: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    epoch = sa.Column("key_epoch", sa.BigInteger(), nullable=False, server_default=sa.text("0"))
    op.add_column("deployment", epoch)
    op.create_table(
        "kept_secrets",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.Column("set_at_us", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        sa.Column("set_by", sa.Text(), nullable=False, server_default=sa.text("''")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_kept_secrets")),
    )


def downgrade() -> None:
    op.drop_table("kept_secrets")
    with op.batch_alter_table("deployment") as table:
        table.drop_column("key_epoch")
