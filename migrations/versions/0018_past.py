"""When machines were asked for, to find those of the last weeks.

Revision: 0018
"""

from __future__ import annotations

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_nodes_requested", "nodes", ["requested_at_us"])


def downgrade() -> None:
    op.drop_index("ix_nodes_requested", "nodes")
