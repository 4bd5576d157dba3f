"""The table of drills."""

from __future__ import annotations

from sqlalchemy import Column, Index, Table, Text

from spotd.domain.fault_drill import DrillEnd, DrillKind
from spotd.store.columns import big, job, key, metadata, one_of, real, where, words

drills = Table(
    "drills",
    metadata,
    Column("id", Text, primary_key=True),
    job(),
    key("kind"),
    words("actor"),
    big("asked_at_us"),
    real("within_s"),
    words("node_id"),
    big("aimed_at_us"),
    big("struck_at_us"),
    big("ended_at_us"),
    Column("outcome", Text),
    words("text"),
    words("found"),
    one_of("kind", DrillKind),
    one_of("outcome", DrillEnd),
)
# The lock: two drills of a job never overlap.
Index("uq_drills_open", drills.c.job_id, unique=True, **where("ended_at_us = 0"))
