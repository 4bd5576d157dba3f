"""The first schema.

Revision: 0001
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _key(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=False)


def _words(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=False, server_default=sa.text("''"))


def _big(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0"))


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), nullable=False, server_default=sa.text("0"))


def _flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean(), nullable=False, server_default=sa.false())


def _real(name: str) -> sa.Column[float]:
    return sa.Column(name, sa.Float(precision=53), nullable=False, server_default=sa.text("0"))


def _each(kind: Callable[[str], sa.Column[Any]], names: str) -> list[sa.Column[Any]]:
    return [kind(name) for name in names.split()]


def _check(name: str, *parts: str) -> sa.CheckConstraint:
    return sa.CheckConstraint("".join(parts), name=op.f(name))


def _one_of(name: str, column: str, values: str) -> sa.CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values.split())
    return _check(name, f"{column} IN ({listed})")


def _index(name: str, table: str, columns: str, where: str = "", *, unique: bool = False) -> None:
    condition = sa.text(where) if where else None
    op.create_index(
        name,
        table,
        columns.split(),
        unique=unique,
        sqlite_where=condition,
        postgresql_where=condition,
    )


def upgrade() -> None:
    _create_counters()
    _create_deployment()
    _create_duties()
    _create_jobs()
    _create_offers()
    _create_price_history()
    _create_providers()
    _create_alerts()
    _create_attempts()
    _create_checkpoints()
    _create_events()
    _create_progress()
    _create_secrets()
    _create_nodes()
    _create_log_offsets()
    _create_notices()
    _create_refusals()
    _create_segments()


def _create_counters() -> None:
    op.create_table(
        "counters", _key("name"), _big("value"), sa.PrimaryKeyConstraint("name", name="pk_counters")
    )


def _create_deployment() -> None:
    op.create_table(
        "deployment",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        _key("name"),
        *_each(_big, "created_at_us max_nodes max_microusd_per_h"),
        _check("ck_deployment_single", "id = 1"),
        sa.PrimaryKeyConstraint("id", name="pk_deployment"),
    )


def _create_duties() -> None:
    op.create_table(
        "duties",
        *_each(_key, "name holder"),
        *_each(_big, "epoch until_us"),
        sa.PrimaryKeyConstraint("name", name="pk_duties"),
    )


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        *_each(_key, "id name spec spec_yaml"),
        _words("user_name"),
        sa.Column("request_id", sa.Text(), nullable=True),
        sa.Column("job_key", sa.LargeBinary(), nullable=False),
        _big("created_at_us"),
        _key("desired"),
        _big("version"),
        _count("generation"),
        sa.Column("outcome", sa.Text(), nullable=True),
        _words("outcome_text"),
        _big("finished_at_us"),
        _count("failures"),
        *_each(_big, "place_after_us save_wanted_at_us"),
        _words("stop_text"),
        *_each(_big, "wake_at_us notes_seen"),
        _words("last_reason"),
        _big("notes"),
        _count("head_generation"),
        _big("head_step"),
        _words("head_manifest"),
        *_each(_flag, "head_released head_final"),
        *_each(_big, "head_seen_at_us head_read_at_us first_step_at_us due_at_us"),
        _words("claim_owner"),
        _big("claim_until_us"),
        _one_of("ck_jobs_desired", "desired", "run pause cancel"),
        _one_of("ck_jobs_outcome", "outcome", "succeeded failed cancelled"),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.UniqueConstraint("request_id", name="uq_jobs_request_id"),
    )
    _index("ix_jobs_due", "jobs", "due_at_us claim_until_us", "due_at_us > 0")
    _index("ix_jobs_name", "jobs", "name")
    _index("uq_jobs_name_unfinished", "jobs", "name", "outcome IS NULL", unique=True)


def _create_offers() -> None:
    op.create_table(
        "offers",
        *_each(_key, "provider key data"),
        sa.PrimaryKeyConstraint("provider", "key", name="pk_offers"),
    )


def _create_price_history() -> None:
    op.create_table(
        "price_history",
        _key("offer_key"),
        *_each(_big, "at_us price_microusd_per_h list_microusd_per_h"),
        _words("price_source"),
        sa.PrimaryKeyConstraint("offer_key", "at_us", name="pk_price_history"),
    )


def _create_providers() -> None:
    op.create_table(
        "providers",
        _key("name"),
        _words("disabled"),
        _big("at_us"),
        sa.PrimaryKeyConstraint("name", name="pk_providers"),
    )


def _create_alerts() -> None:
    op.create_table(
        "alerts",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        _key("route"),
        _words("key"),
        _big("at_us"),
        sa.Column("job_id", sa.Text(), nullable=True),
        _key("event"),
        *_each(_count, "repeats tries"),
        *_each(_big, "next_at_us sent_at_us"),
        _words("error"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_alerts_job_id"),
        sa.PrimaryKeyConstraint("id", name="pk_alerts"),
    )
    _index("ix_alerts_unsent", "alerts", "next_at_us", "sent_at_us = 0")


def _create_attempts() -> None:
    op.create_table(
        "attempts",
        _key("job_id"),
        sa.Column("generation", sa.Integer(), nullable=False),
        _big("opened_at_us"),
        _key("cause"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_attempts_job_id"),
        sa.PrimaryKeyConstraint("job_id", "generation", name="pk_attempts"),
    )


def _create_checkpoints() -> None:
    op.create_table(
        "checkpoints",
        *_each(_key, "job_id manifest"),
        _count("generation"),
        *_each(_big, "step bytes"),
        _words("trigger"),
        *_each(_flag, "released final"),
        _big("committed_at_us"),
        *_each(_real, "stage_s write_s"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_checkpoints_job_id"),
        sa.PrimaryKeyConstraint("job_id", "manifest", name="pk_checkpoints"),
    )


def _create_events() -> None:
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        _big("at_us"),
        sa.Column("job_id", sa.Text(), nullable=True),
        _key("kind"),
        *_each(_words, "text node_id"),
        _key("severity"),
        _flag("alert"),
        _words("key"),
        _key("data"),
        _one_of("ck_events_severity", "severity", "debug info warning error"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_events_job_id"),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
    )
    _index("ix_events_job", "events", "job_id id")


def _create_progress() -> None:
    op.create_table(
        "progress",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        _key("job_id"),
        _count("generation"),
        *_each(_big, "at_us from_step to_step"),
        _key("losses"),
        *_each(_big, "first_at_us last_at_us tokens"),
        _real("busy_s"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_progress_job_id"),
        sa.PrimaryKeyConstraint("id", name="pk_progress"),
    )
    _index("ix_progress_job", "progress", "job_id at_us generation to_step tokens busy_s")


def _create_secrets() -> None:
    op.create_table(
        "secrets",
        *_each(_key, "job_id name"),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_secrets_job_id"),
        sa.PrimaryKeyConstraint("job_id", "name", name="pk_secrets"),
    )


def _create_nodes() -> None:
    op.create_table(
        "nodes",
        *_each(_key, "id job_id"),
        *_each(_count, "generation rank candidate"),
        *_each(_key, "token offer offer_key provider"),
        _big("requested_at_us"),
        _key("state"),
        _flag("chosen"),
        sa.Column("leave_reason", sa.Text(), nullable=True),
        _words("leave_text"),
        *_each(_big, "left_at_us drained_at_us kept_until_us"),
        sa.Column("effect", sa.Text(), nullable=True),
        *_each(_big, "effect_armed_at_us effect_due_at_us rate_microusd_per_h"),
        _words("instance_id"),
        _big("launched_at_us"),
        *_each(_words, "launch_error launch_error_code host"),
        _count("port"),
        *_each(_words, "ssh_user cloud_state"),
        *_each(_big, "surveyed_at_us seen_at_us booted_at_us started_at_us"),
        _words("started_claim"),
        *_each(_big, "told_release_at_us told_drain_at_us told_save_at_us"),
        *_each(_big, "terminated_at_us gone_at_us"),
        _words("effect_failed_kind"),
        _big("effect_failed_at_us"),
        _count("effect_failures"),
        _words("effect_error"),
        *_each(_big, "hello_at_us ready_at_us claimed_at_us first_step_at_us last_step"),
        *_each(_big, "heard_at_us link_down_at_us released_at_us"),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        _big("exited_at_us"),
        _words("exit_tail"),
        _flag("setup_failed"),
        _big("journal_seq"),
        _one_of(
            "ck_nodes_effect",
            "effect",
            "launch resolve survey boot start release drain save read_head terminate",
        ),
        _one_of(
            "ck_nodes_leave_reason",
            "leave_reason",
            "preempted lost boot_timeout capacity failed done cancelled outbid hedge_lost",
        ),
        _one_of("ck_nodes_state", "state", "launching booting running draining terminating gone"),
        sa.ForeignKeyConstraint(
            ["job_id", "generation"],
            ["attempts.job_id", "attempts.generation"],
            name="fk_nodes_job_id",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_nodes"),
        sa.UniqueConstraint("token", name="uq_nodes_token"),
    )
    _index("ix_nodes_active", "nodes", "provider rate_microusd_per_h job_id", "state <> 'gone'")
    _index("ix_nodes_down", "nodes", "id", "link_down_at_us > 0")
    _index("ix_nodes_instance", "nodes", "provider instance_id")
    _index("ix_nodes_job", "nodes", "job_id generation")
    _index(
        "uq_nodes_chosen_rank",
        "nodes",
        "job_id rank",
        "chosen AND state IN ('booting', 'running')",
        unique=True,
    )


def _create_log_offsets() -> None:
    op.create_table(
        "log_offsets",
        *_each(_key, "node_id stream"),
        _big("stored_bytes"),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name="fk_log_offsets_node_id"),
        sa.PrimaryKeyConstraint("node_id", "stream", name="pk_log_offsets"),
    )


def _create_notices() -> None:
    op.create_table(
        "notices",
        *_each(_key, "node_id notice_id kind"),
        _big("heard_at_us"),
        sa.Column("deadline_us", sa.BigInteger(), nullable=True),
        _flag("withdrawn"),
        *_each(_words, "source text"),
        _one_of("ck_notices_kind", "kind", "rebalance preempt maintenance"),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name="fk_notices_node_id"),
        sa.PrimaryKeyConstraint("node_id", "notice_id", name="pk_notices"),
    )


def _create_refusals() -> None:
    op.create_table(
        "refusals",
        *_each(_key, "node_id code offer_key scope"),
        _big("at_us"),
        _one_of("ck_refusals_scope", "scope", "offer zone region provider"),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name="fk_refusals_node_id"),
        sa.PrimaryKeyConstraint("node_id", "code", name="pk_refusals"),
    )
    _index("ix_refusals_at", "refusals", "at_us")


def _create_segments() -> None:
    op.create_table(
        "segments",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        *_each(_key, "node_id job_id kind"),
        *_each(_big, "start_us end_us rate_microusd_per_h list_rate_microusd_per_h"),
        *_each(_big, "best_on_demand_microusd_per_h"),
        _words("price_source"),
        _key("state"),
        _big("cost_microusd"),
        _check("ck_segments_ended", "(end_us = 0) = (state IN ('unknown', 'open'))"),
        _one_of("ck_segments_state", "state", "unknown open closed void"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_segments_job_id"),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name="fk_segments_node_id"),
        sa.PrimaryKeyConstraint("id", name="pk_segments"),
    )
    _index("ix_segments_job", "segments", "job_id cost_microusd")
    _index("uq_segments_running", "segments", "node_id", "end_us = 0", unique=True)


def downgrade() -> None:
    raise NotImplementedError("go back by restoring the copy that was made before the upgrade")
