"""Journal entries become fields of nodes, rows and events, each exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spotd.store.checkpoints import CheckpointRow
from spotd.store.journal import JournalBatch, apply_batch, job_news
from spotd.store.journal_projection import JobFacts, NodeProjection
from spotd.store.rows import printed_steps_of
from tests.sim.memory import evaluations, invoices, notices
from tests.sim.memory.columns import NodeColumns
from tests.sim.memory.transaction import Transaction


def record_journal(tx: Transaction, batches: Sequence[JournalBatch]) -> None:
    """See Store.journal.record."""
    tables = tx.tables
    known = [batch for batch in batches if batch.node_id in tables.nodes]
    names = sorted({batch.node_id for batch in known})
    rows = [NodeColumns(tables.nodes[name]) for name in names]
    jobs = {row.job_id: JobFacts(tables.jobs[row.job_id]) for row in rows}
    nodes = {row.id: NodeProjection(row, jobs[row.job_id]) for row in rows}
    for batch in known:
        apply_batch(nodes[batch.node_id], batch)
    _write(tx, list(nodes.values()), list(jobs.values()))


def _write(tx: Transaction, nodes: Sequence[NodeProjection], jobs: Sequence[JobFacts]) -> None:
    tables = tx.tables
    tx.touch({node.job.id: node.heard_at_us for node in nodes if node.due})
    for node in nodes:
        printed = {"printed_steps": printed_steps_of(node.columns["printed_steps"])}
        tx.change_node(tables.nodes[node.row.id], **node.columns | printed)
        for event, at_us in node.events:
            tx.event(node.job.id, event, at_us)
        for row in node.progress:
            tx.progress(row)
    notices.record(tx, [notice for node in nodes for notice in node.notices])
    for node in nodes:
        for notice_id in node.withdrawn:
            notices.withdraw(tx, node.row.id, notice_id)
        for row in node.checkpoints:
            _add_checkpoint(tx, row)
        for read in node.read:
            invoices.add_shipment(tx, read)
        for output in node.outputs:
            tx.put(tables.outputs, (output.job_id, output.manifest), output)
        for told in node.evaluations:
            evaluations.record(tx, told)
    for facts in jobs:
        news = job_news(facts)
        if news:
            tx.change_job(tables.jobs[facts.job.id], **news)


def _add_checkpoint(tx: Transaction, row: dict[str, Any]) -> None:
    """Every rank of a gang may report the same one: the first report counts."""
    key = (row["job_id"], row["manifest"])
    if key not in tx.tables.checkpoints:
        tx.put(tx.tables.checkpoints, key, CheckpointRow(**row))
