"""Journal entries become node columns, rows and events, each exactly once.

A batch holds the entries one node sent since the last one. Entries that are on record already, by
their number, and unknown nodes are skipped; an invalid entry becomes a warning event and stops
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BindParameter, Connection, Row, bindparam, select, update

from spotd.domain.events import Event, Severity
from spotd.domain.job import HeadSnapshot
from spotd.store import evaluations, notices, outputs, schema, transfers
from spotd.store.jobs import newer_head
from spotd.store.journal_entries import APPLY
from spotd.store.journal_projection import COLUMNS, JobFacts, NodeProjection
from spotd.store.rows import JOB_COLUMNS, head_columns, job_of
from spotd.store.session import Repository, write_urgent
from spotd.store.transaction import Transaction
from spotd.wire import MAX_NUMBER, JournalEntry, WireError


@dataclass(frozen=True)
class JournalBatch:
    """Entries of one node, in order, possibly with some already recorded. Idempotent by `seq`."""

    node_id: str
    entries: tuple[JournalEntry, ...]
    heard_at_us: int


_nodes, _jobs = schema.nodes.c, schema.jobs.c
_NODE_IDS: BindParameter[Any] = bindparam("nodes", expanding=True)
_JOB_IDS: BindParameter[Any] = bindparam("jobs", expanding=True)
_OWNERS = select(_nodes.id, _nodes.job_id).where(_nodes.id.in_(_NODE_IDS))
_LOCK = select(_jobs.id).where(_jobs.id.in_(_JOB_IDS)).order_by(_jobs.id).with_for_update()
_FACTS = select(*JOB_COLUMNS).where(_jobs.id.in_(_JOB_IDS))
_ROWS = select(schema.nodes).where(_nodes.id.in_(_NODE_IDS))
_UPDATE = (
    update(schema.nodes)
    .where(_nodes.id == bindparam("node"))
    .values({name: bindparam(name) for name in COLUMNS})
)


class JournalRepository(Repository):
    """The journals of nodes."""

    @write_urgent
    def record(self, tx: Transaction, batches: Sequence[JournalBatch]) -> None:
        """Turn journal entries into rows, node columns and events, each once; update
        `heard_at_us`."""
        owners = _owners(tx.conn, sorted({batch.node_id for batch in batches}))
        known = [batch for batch in batches if batch.node_id in owners]
        if not known:
            return
        # Locks come first: of two that record the same entries, the second finds them on record.
        _lock(tx.conn, sorted(set(owners.values())))
        jobs = _job_facts(tx.conn, sorted(set(owners.values())))
        nodes = {
            row.id: NodeProjection(row, jobs[row.job_id]) for row in _rows(tx.conn, sorted(owners))
        }
        for batch in known:
            apply_batch(nodes[batch.node_id], batch)
        _write(tx, list(nodes.values()), list(jobs.values()))


def apply_batch(node: NodeProjection, batch: JournalBatch) -> None:
    """Apply a node's entries, with times on the daemon's clock.

    An entry that is older than the batch's newest was written that much earlier. So no deadline is
    computed too early, even if the node's clock was set in between: no new entry was written before
    the node's last message.
    """
    last_us = max(node.columns["heard_at_us"], node.row.requested_at_us)
    newest_us = max((entry.at_us for entry in batch.entries), default=0)
    for entry in sorted(batch.entries, key=lambda item: item.seq):
        if not node.columns["journal_seq"] < entry.seq <= MAX_NUMBER:
            continue
        at_us = max(batch.heard_at_us - (newest_us - entry.at_us), last_us)
        _apply(node, entry, min(at_us, batch.heard_at_us))
        node.columns["journal_seq"] = entry.seq
    node.hear(batch.heard_at_us)


def _apply(node: NodeProjection, entry: JournalEntry, at_us: int) -> None:
    try:
        if entry.generation != node.row.generation:
            raise WireError(f"generation {entry.generation} on a node of {node.row.generation}")
        apply = APPLY.get(entry.kind)
        if apply is None:
            raise WireError("a kind of entry that this version does not know")
        apply(node, entry, at_us)
    except WireError as error:
        text = f"the node's journal has an invalid entry ({entry.kind[:40]!r}): {str(error)[:200]}"
        node.say(Event("journal", text, severity=Severity.WARNING), at_us)


def _owners(conn: Connection, node_ids: Sequence[str]) -> dict[str, str]:
    return {row.id: row.job_id for row in conn.execute(_OWNERS, {"nodes": node_ids})}


def _lock(conn: Connection, job_ids: Sequence[str]) -> None:
    conn.execute(_LOCK, {"jobs": job_ids}).all()


def _job_facts(conn: Connection, job_ids: Sequence[str]) -> dict[str, JobFacts]:
    return {row.id: JobFacts(job_of(row)) for row in conn.execute(_FACTS, {"jobs": job_ids})}


def _rows(conn: Connection, node_ids: Sequence[str]) -> Sequence[Row[Any]]:
    return conn.execute(_ROWS, {"nodes": node_ids}).all()


def _write(tx: Transaction, nodes: Sequence[NodeProjection], jobs: Sequence[JobFacts]) -> None:
    tx.touch({node.job.id: node.heard_at_us for node in nodes if node.due})
    rows = [{"node": node.row.id, **node.columns} for node in nodes]
    tx.conn.execute(_UPDATE, rows)
    for node in nodes:
        for event, at_us in node.events:
            tx.event(node.job.id, event, at_us)
        for row in node.progress:
            tx.progress(row)
    notices.record(tx, [notice for node in nodes for notice in node.notices])
    for node in nodes:
        for notice_id in node.withdrawn:
            notices.withdraw(tx, node.row.id, notice_id)
        for read in node.read:
            transfers.add_shipment(tx, read)
        for output in node.outputs:
            outputs.record(tx, output)
        for measurement in node.evaluations:
            evaluations.record(tx, measurement)
    _write_checkpoints(tx.conn, [row for node in nodes for row in node.checkpoints])
    for job in jobs:
        _write_job(tx.conn, job)


def _write_checkpoints(conn: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Write checkpoints. Every rank of a gang may report the same one: the first report counts."""
    table = schema.checkpoints
    fresh = {(row["job_id"], row["manifest"]): row for row in reversed(rows)}
    if not fresh:
        return
    manifests = sorted({manifest for _, manifest in fresh})
    query = select(table.c.job_id, table.c.manifest).where(table.c.manifest.in_(manifests))
    for job_id, manifest in conn.execute(query).all():
        fresh.pop((job_id, manifest), None)
    if fresh:
        conn.execute(table.insert(), list(fresh.values()))


def job_news(facts: JobFacts) -> dict[str, Any]:
    """The fields of the job that change."""
    news: dict[str, Any] = {}
    head: HeadSnapshot | None = facts.job.head
    for reading in facts.heads:
        head = newer_head(head, reading)
    if head is not None and head != facts.job.head:
        news["head"] = head
    if facts.first_step_at_us and not facts.job.progress.first_step_at_us:
        news["first_step_at_us"] = facts.first_step_at_us
    if facts.outputs_at_us > facts.job.progress.outputs_at_us:
        news["outputs_at_us"] = facts.outputs_at_us
    return news


def _write_job(conn: Connection, facts: JobFacts) -> None:
    values = job_news(facts)
    if "head" in values:
        values |= head_columns(values.pop("head"))
    if values:
        conn.execute(update(schema.jobs).where(_jobs.id == facts.job.id).values(**values))
