"""The files that jobs leave behind, and the step that each machine resumed from.

Revision: 0029
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("nodes", _big("outputs_since_us"))
    op.add_column("nodes", sa.Column("resumed_step", sa.BigInteger()))
    op.add_column("nodes", _big("anew_at_us"))
    op.add_column("jobs", _big("outputs_at_us"))
    op.create_table(
        "outputs",
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("job_id", "manifest", "digest")),
        *(
            sa.Column(name, sa.Integer(), nullable=False, server_default=sa.text("0"))
            for name in ("generation", "rank")
        ),
        sa.Column("node_id", sa.Text(), nullable=False),
        *(_big(name) for name in ("stored_at_us", "files", "bytes", "new_bytes")),
        sa.Column("text", sa.Text(), nullable=False, server_default=sa.text("''")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"]),
        sa.PrimaryKeyConstraint("job_id", "manifest"),
    )


def downgrade() -> None:
    op.drop_table("outputs")
    op.drop_column("jobs", "outputs_at_us")
    op.drop_column("nodes", "anew_at_us")
    op.drop_column("nodes", "resumed_step")
    op.drop_column("nodes", "outputs_since_us")


def _big(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0"))
