"""The tables, portable between SQLite and PostgreSQL: text ids, microseconds, JSON as text.

Columns of jobs and nodes are grouped by their only writer: the row's creation, decisions (commit),
observations (record_*), users, and the loop's bookkeeping. Invariants that must hold whatever the
code does are constraints here. The audit is append-only: triggers refuse to change or delete a row,
so that not even a bug of spotd rewrites it.
"""

# More than 600 lines: all tables stand in one file, which a migration is compared with.
from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    event,
    text,
)

from providers.base import NoticeKind, Scope
from spotd.domain.events import AuditOutcome, Severity
from spotd.domain.fault_drill import DrillEnd, DrillKind
from spotd.domain.job import Desired
from spotd.domain.node import EffectKind
from spotd.domain.states import LeaveReason, NodeState, Outcome
from spotd.store.columns import (
    big,
    count,
    flag,
    job,
    key,
    metadata,
    one_of,
    real,
    redacted,
    where,
    words,
)

# Every schema there ever was, oldest first; the last one is the one below.
REVISIONS = tuple(f"{number:04}" for number in range(1, 35))
SEGMENT_STATES = ("unknown", "open", "closed", "void")

deployment = Table(
    "deployment",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    key("name"),
    big("created_at_us"),
    big("max_nodes"),
    big("max_microusd_per_h"),
    words("projects"),
    Column("key_check", LargeBinary),
    big("key_epoch"),
    words("quarantine"),
    CheckConstraint("id = 1", name="single"),
)

# "ids": the last id given to an event, a progress row, ...; "offers", "market": versions of what
# market.py caches; "clock": the latest time that a daemon had. A counter's row is locked until its
# transaction ends, so ids are committed in their order and a reader that asks for "after id N"
# misses nothing.
counters = Table("counters", metadata, Column("name", Text, primary_key=True), big("value"))

jobs = Table(
    "jobs",
    metadata,
    Column("id", Text, primary_key=True),
    key("name"),
    key("spec"),
    key("spec_yaml"),
    words("user_name"),
    Column("request_id", Text),
    Column("job_key", LargeBinary, nullable=False),
    big("created_at_us"),
    # --- users
    key("desired"),
    words("approval_asked_by"),
    words("approval_text"),
    # --- decisions
    big("version"),
    count("generation"),
    Column("outcome", Text),
    words("outcome_text"),
    big("finished_at_us"),
    count("failures"),
    big("place_after_us"),
    big("save_wanted_at_us"),
    big("waiting_since_us"),
    big("waiting_told_us"),
    big("unsaved_told_us"),
    big("room_since_us"),
    big("room_asked_us"),
    big("room_microusd_per_h"),
    big("offers_at_us"),
    words("yields_to"),
    big("yields_since_us"),
    big("yielded_at_us"),
    words("stop_text"),
    big("wake_at_us"),
    big("notes_seen"),
    words("last_reason"),
    # --- observations
    big("notes"),
    count("head_generation"),
    big("head_step"),
    words("head_manifest"),
    flag("head_released"),
    flag("head_final"),
    big("head_seen_at_us"),
    big("head_read_at_us"),
    big("first_step_at_us"),
    big("outputs_at_us"),
    # --- the loop: due when 0 < due_at_us <= now and the claim has run out
    big("due_at_us"),
    words("claim_owner"),
    big("claim_until_us"),
    UniqueConstraint("request_id"),
    one_of("desired", Desired),
    one_of("outcome", Outcome),
)
Index(
    "uq_jobs_name_unfinished",
    jobs.c.name,
    unique=True,
    **where("outcome IS NULL"),
)
Index("ix_jobs_name", jobs.c.name)
Index(
    "ix_jobs_due",
    jobs.c.due_at_us,
    jobs.c.claim_until_us,
    **where("due_at_us > 0"),
)
Index("ix_jobs_room", jobs.c.room_asked_us, **where("room_asked_us > 0"))
Index("ix_jobs_offers", jobs.c.offers_at_us, **where("offers_at_us > 0"))

secrets = Table(
    "secrets",
    metadata,
    job(),
    key("name"),
    Column("value", LargeBinary, nullable=False),
    PrimaryKeyConstraint("job_id", "name"),
)

attempts = Table(
    "attempts",
    metadata,
    job(),
    Column("generation", Integer, nullable=False),
    big("opened_at_us"),
    key("cause"),
    PrimaryKeyConstraint("job_id", "generation"),
)

nodes = Table(
    "nodes",
    metadata,
    Column("id", Text, primary_key=True),
    key("job_id"),
    count("generation"),
    count("rank"),
    count("candidate"),
    key("token"),
    key("offer"),
    key("offer_key"),
    key("provider"),
    big("requested_at_us"),
    big("expires_at_us"),
    words("image_id"),
    words("image_setup"),
    big("moved_at_us"),
    count("gang_size"),
    # --- decisions
    key("state"),
    flag("chosen"),
    Column("leave_reason", Text),
    words("leave_text"),
    big("left_at_us"),
    big("terminating_at_us"),
    big("drained_at_us"),
    big("kept_until_us"),
    Column("effect", Text),
    big("effect_armed_at_us"),
    big("effect_due_at_us"),
    # --- observations: the market
    big("rate_microusd_per_h"),
    # --- observations: effects and the cloud
    words("instance_id"),
    big("launched_at_us"),
    redacted("launch_error"),
    words("launch_error_code"),
    words("host"),
    words("private_host"),
    count("port"),
    words("ssh_user"),
    words("host_public_key"),
    words("cloud_state"),
    big("surveyed_at_us"),
    big("seen_at_us"),
    big("missed_at_us"),
    big("booted_at_us"),
    big("started_at_us"),
    words("started_claim"),
    big("told_release_at_us"),
    big("told_drain_at_us"),
    big("told_save_at_us"),
    big("cleaned_at_us"),
    big("image_asked_at_us"),
    big("imaged_at_us"),
    redacted("image_error"),
    big("terminated_at_us"),
    big("renewed_until_us"),
    big("lent_at_us"),
    big("lent_until_us"),
    big("gone_at_us"),
    words("effect_failed_kind"),
    big("effect_failed_at_us"),
    count("effect_failures"),
    redacted("effect_error"),
    # --- observations: the journal
    big("hello_at_us"),
    big("ready_at_us"),
    big("claimed_at_us"),
    Column("resumed_step", BigInteger),
    big("anew_at_us"),
    words("printed_steps"),
    big("first_step_at_us"),
    big("last_step"),
    big("total_steps"),
    big("heard_at_us"),
    big("link_down_at_us"),
    big("released_at_us"),
    Column("exit_code", Integer),
    big("exited_at_us"),
    redacted("exit_tail"),
    redacted("exit_cause"),
    words("failed_part"),
    flag("setup_failed"),
    big("disk_full_at_us"),
    big("wiped_at_us"),
    redacted("wiped_text"),
    big("outputs_since_us"),
    big("journal_seq"),
    big("wire"),
    words("drill"),
    UniqueConstraint("token"),
    ForeignKeyConstraint(["job_id", "generation"], ["attempts.job_id", "attempts.generation"]),
    one_of("state", NodeState),
    one_of("leave_reason", LeaveReason),
    one_of("effect", EffectKind),
)
Index(
    "uq_nodes_chosen_rank",
    nodes.c.job_id,
    nodes.c.rank,
    unique=True,
    **where("chosen AND state IN ('booting', 'running')"),
)
Index("ix_nodes_job", nodes.c.job_id, nodes.c.generation)
Index(
    "ix_nodes_active",
    nodes.c.provider,
    nodes.c.rate_microusd_per_h,
    nodes.c.job_id,
    **where("state <> 'gone'"),
)
Index("ix_nodes_requested", nodes.c.requested_at_us)
Index("ix_nodes_instance", nodes.c.provider, nodes.c.instance_id)
Index("ix_nodes_down", nodes.c.id, **where("link_down_at_us > 0"))

notices = Table(
    "notices",
    metadata,
    Column("node_id", Text, ForeignKey("nodes.id"), nullable=False),
    key("notice_id"),
    key("kind"),
    big("heard_at_us"),
    Column("deadline_us", BigInteger),
    flag("withdrawn"),
    words("source"),
    redacted("text"),
    PrimaryKeyConstraint("node_id", "notice_id"),
    one_of("kind", NoticeKind),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    job(),
    key("manifest"),
    count("generation"),
    big("step"),
    big("bytes"),
    words("trigger"),
    flag("released"),
    flag("final"),
    big("committed_at_us"),
    real("stage_s"),
    real("write_s"),
    big("near_bytes"),
    big("removed_at_us"),
    big("shared_bytes"),
    PrimaryKeyConstraint("job_id", "manifest"),
)

progress = Table(
    "progress",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    job(),
    count("generation"),
    big("at_us"),
    big("from_step"),
    big("to_step"),
    key("losses"),
    big("first_at_us"),
    big("last_at_us"),
    big("tokens"),
    real("busy_s"),
)
Index(
    "ix_progress_job",
    progress.c.job_id,
    progress.c.at_us,
    progress.c.generation,
    progress.c.to_step,
    progress.c.tokens,
    progress.c.busy_s,  # throughput is read from the index alone
)

# Those that were ever to be made, each of one machine's disk: on record before its cloud is asked
# for it. Without the machine's row, where it was found in a cloud alone.
images = Table(
    "images",
    metadata,
    Column("node_id", Text, primary_key=True),
    key("job_id"),
    key("name"),
    key("provider"),
    key("region"),
    key("vendor_name"),
    words("setup"),
    words("base"),
    words("version"),
    big("asked_at_us"),
    words("image_id"),
    count("size_gib"),
    big("made_at_us"),
    big("unwanted_at_us"),
    big("gone_at_us"),
)

log_offsets = Table(
    "log_offsets",
    metadata,
    Column("node_id", Text, ForeignKey("nodes.id"), nullable=False),
    key("stream"),
    big("stored_bytes"),
    PrimaryKeyConstraint("node_id", "stream"),
)
# --- money
segments = Table(
    "segments",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("node_id", Text, ForeignKey("nodes.id"), nullable=False),
    job(),
    key("kind"),
    big("start_us"),
    big("end_us"),
    big("rate_microusd_per_h"),
    big("list_rate_microusd_per_h"),
    big("best_on_demand_microusd_per_h"),
    words("price_source"),
    key("state"),
    big("cost_microusd"),
    big("reconciled_at_us"),
    big("invoiced_microusd"),
    one_of("state", SEGMENT_STATES),
    CheckConstraint("(end_us = 0) = (state IN ('unknown', 'open'))", name="ended"),
)
Index("ix_segments_job", segments.c.job_id, segments.c.cost_microusd)
# One running stretch a node: the ledger cannot count an hour twice.
Index(
    "uq_segments_running",
    segments.c.node_id,
    unique=True,
    **where("end_us = 0"),
)

# --- the record, and what leaves the house

events = Table(
    "events",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    big("at_us"),
    Column("job_id", Text, ForeignKey("jobs.id")),
    key("kind"),
    words("text"),
    words("node_id"),
    key("severity"),
    flag("alert"),
    words("key"),
    key("data"),
    one_of("severity", Severity),
)
Index("ix_events_job", events.c.job_id, events.c.id)

alerts = Table(
    "alerts",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    key("route"),
    words("key"),
    big("at_us"),
    Column("job_id", Text, ForeignKey("jobs.id")),
    key("event"),
    count("repeats"),
    count("tries"),
    big("next_at_us"),
    big("sent_at_us"),
    redacted("error"),
)
Index("ix_alerts_unsent", alerts.c.next_at_us, **where("sent_at_us = 0"))

duties = Table(
    "duties",
    metadata,
    Column("name", Text, primary_key=True),
    key("holder"),
    big("epoch"),
    big("until_us"),
)

providers = Table(
    "providers",
    metadata,
    Column("name", Text, primary_key=True),
    redacted("disabled"),
    big("at_us"),
    big("told_at_us"),
)

offers = Table(
    "offers",
    metadata,
    key("provider"),
    key("key"),
    key("data"),
    PrimaryKeyConstraint("provider", "key"),
)

price_history = Table(
    "price_history",
    metadata,
    key("offer_key"),
    big("at_us"),
    big("price_microusd_per_h"),
    big("list_microusd_per_h"),
    words("price_source"),
    PrimaryKeyConstraint("offer_key", "at_us"),
)

refusals = Table(
    "refusals",
    metadata,
    Column("node_id", Text, ForeignKey("nodes.id"), nullable=False),
    key("code"),
    key("offer_key"),
    key("scope"),
    big("at_us"),
    PrimaryKeyConstraint("node_id", "code"),
    one_of("scope", Scope),
)
Index("ix_refusals_at", refusals.c.at_us)

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

# The files that jobs leave, one row for each upload.
outputs = Table(
    "outputs",
    metadata,
    job(),
    key("manifest"),
    key("digest"),
    count("generation"),
    count("rank"),
    key("node_id"),
    big("stored_at_us"),
    big("files"),
    big("bytes"),
    big("new_bytes"),
    redacted("text"),
    PrimaryKeyConstraint("job_id", "manifest"),
)

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

audit = Table(
    "audit",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    big("at_us"),
    Column("uid", BigInteger, nullable=False, server_default=text("-1")),
    words("user_name"),
    key("action"),
    words("target"),
    key("outcome"),
    words("text"),
    words("request"),
    one_of("outcome", AuditOutcome),
)
Index("ix_audit_at", audit.c.at_us)

kept_secrets = Table(
    "kept_secrets",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", LargeBinary, nullable=False),
    big("set_at_us"),
    words("set_by"),
)

disabled_users = Table(
    "disabled_users",
    metadata,
    Column("name", Text, primary_key=True),
    Column("uid", BigInteger, nullable=False, server_default=text("-1")),
    big("disabled_at_us"),
    words("disabled_by"),
    words("successor"),
)

# Whose key a machine was given; 0 as long as it may still be there.
admissions = Table(
    "admissions",
    metadata,
    Column("node_id", Text, ForeignKey("nodes.id"), nullable=False),
    key("user_name"),
    big("admitted_at_us"),
    big("dismissed_at_us"),
    PrimaryKeyConstraint("node_id", "user_name"),
)
Index("ix_admissions_user", admissions.c.user_name)

# Tokens that people log in to the dashboard with; of each only the digest is stored.
user_tokens = Table(
    "user_tokens",
    metadata,
    Column("id", Text, primary_key=True),
    key("name"),
    flag("account"),
    words("role"),
    key("digest"),
    big("made_at_us"),
    words("made_by"),
    big("expires_at_us"),
)

# Who is logged in to the dashboard; `token_id` is "" after a login at an identity provider.
login_sessions = Table(
    "login_sessions",
    metadata,
    Column("digest", Text, primary_key=True),
    key("name"),
    flag("account"),
    words("role"),
    words("token_id"),
    big("began_at_us"),
    big("expires_at_us"),
)

_SQLITE = """
CREATE TRIGGER audit_append_only_{verb} BEFORE {verb} ON audit
BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END
"""
_POSTGRESQL = (
    """
    CREATE FUNCTION audit_append_only() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'the audit is append-only'; END $$
    """,
    """
    CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
    FOR EACH STATEMENT EXECUTE FUNCTION audit_append_only()
    """,
)
APPEND_ONLY = {
    "sqlite": tuple(_SQLITE.format(verb=verb) for verb in ("UPDATE", "DELETE")),
    "postgresql": _POSTGRESQL,
}


def _make_append_only(_table: Table, conn: Connection, **_: object) -> None:
    for statement in APPEND_ONLY[conn.dialect.name]:
        conn.execute(text(statement))


def _drop_function(_table: Table, conn: Connection, **_: object) -> None:
    if conn.dialect.name == "postgresql":
        conn.execute(text("DROP FUNCTION IF EXISTS audit_append_only() CASCADE"))


event.listen(audit, "after_create", _make_append_only)
event.listen(audit, "before_drop", _drop_function)
