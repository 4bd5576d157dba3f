"""The tables about what is carried for jobs, beside their machines: what that costs, and how much
of their data went over."""

from __future__ import annotations

from sqlalchemy import PrimaryKeyConstraint, Table

from spotd.store.columns import big, job, key, metadata, words

# What checkpoints and data cost by month (UTC), beside machines.
carriage = Table(
    "carriage",
    metadata,
    job(),
    big("month_us"),
    big("microusd"),
    big("microusd_per_h"),
    big("at_us"),
    PrimaryKeyConstraint("job_id", "month_us"),
)

# What was brought to a copy of a data set ahead of the job (no node), and what a node read over a
# mount, or copied, by month (UTC).
freight = Table(
    "freight",
    metadata,
    job(),
    key("url"),
    words("node_id"),
    big("month_us"),
    big("bytes"),
    big("egress_microusd"),
    big("requests_microusd"),
    big("began_at_us"),
    big("staged_at_us"),
    big("gone_at_us"),
    PrimaryKeyConstraint("job_id", "url", "node_id", "month_us"),
)
