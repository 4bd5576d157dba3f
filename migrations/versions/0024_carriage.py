"""What the checkpoints of each job cost by month, beside its machines.

Revision: 0024
"""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

from spotd.store.errors import StoreError

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

AMOUNTS = ("month_us", "microusd", "microusd_per_h", "at_us")


def upgrade() -> None:
    op.create_table(
        "carriage",
        sa.Column("job_id", sa.Text(), nullable=False),
        *(
            sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0"))
            for name in AMOUNTS
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"]),
        sa.PrimaryKeyConstraint("job_id", "month_us"),
    )
    column = sa.Column(
        "removed_at_us", sa.BigInteger(), nullable=False, server_default=sa.text("0")
    )
    op.add_column("checkpoints", column)


def downgrade() -> None:
    _forget_after()
    op.drop_table("carriage")
    op.drop_column("checkpoints", "removed_at_us")


def _forget_after() -> None:
    """The spotd before it reads no job at all while one says what it comes after. Of a job that has
    finished that is forgotten; one that has not would begin at once. Raises StoreError."""
    conn = op.get_bind()
    query = "SELECT id, name, spec, outcome FROM jobs WHERE spec LIKE '%\"after\":%' ORDER BY id"
    found = [(row, json.loads(row.spec)) for row in conn.execute(sa.text(query))]
    found = [(row, spec) for row, spec in found if "after" in spec]
    waiting = [f"{row.name} ({row.id})" for row, spec in found if not row.outcome and spec["after"]]
    if waiting:
        raise StoreError(
            "an older spotd does not know spotd.after, and these jobs that have it are not "
            f"finished: {', '.join(waiting)}: start this spotd again, let them finish or "
            "`spotctl cancel` them, and then go back"
        )
    for row, spec in found:
        del spec["after"]
        text = json.dumps(spec, separators=(",", ":"), sort_keys=True)
        conn.execute(
            sa.text("UPDATE jobs SET spec = :spec WHERE id = :id"), {"spec": text, "id": row.id}
        )
