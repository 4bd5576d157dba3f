"""The table of what evaluations measured."""

from __future__ import annotations

from sqlalchemy import PrimaryKeyConstraint, Table

from spotd.store.columns import big, job, key, metadata, real, words

evaluations = Table(
    "evaluations",
    metadata,
    job(),
    key("digest"),
    big("at_us"),
    key("suite"),
    big("cases"),
    big("passed"),
    real("tokens_per_s"),
    real("ttft_s"),
    real("ttft_p95_s"),
    words("failed"),
    words("source"),
    PrimaryKeyConstraint("job_id", "digest"),
)
