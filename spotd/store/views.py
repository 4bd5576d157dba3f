"""A job as decisions see it: one snapshot, five statements, however many jobs are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import BindParameter, Connection, bindparam, or_, select

from spotd.model import Attempt, Job, Node, View
from spotd.store import ledger, schema, throughput
from spotd.store.rows import JOB_COLUMNS, NOT_GONE, job_of, nodes_query, read_nodes

_jobs, _nodes = schema.jobs.c, schema.nodes.c
_IDS: BindParameter[Any] = bindparam("jobs", expanding=True)
_JOBS = select(*JOB_COLUMNS).where(_jobs.id.in_(_IDS))
_ATTEMPTS = (
    select(schema.attempts)
    .where(schema.attempts.c.job_id.in_(_IDS))
    .order_by(schema.attempts.c.job_id, schema.attempts.c.generation)
)

_NEWEST = select(_jobs.generation).where(_jobs.id == _nodes.job_id).scalar_subquery()
# All nodes not gone, and those of the newest attempt, of each job.
_NODES = nodes_query(
    _nodes.job_id.in_(_IDS),
    or_(NOT_GONE, _nodes.generation == _NEWEST),
)


def load_views(conn: Connection, job_ids: Sequence[str], now_us: int) -> dict[str, View]:
    """See Store.load_views."""
    ids: dict[str, Any] = {"jobs": list(job_ids)}
    jobs = {row.id: job_of(row) for row in conn.execute(_JOBS, ids)}
    if not jobs:
        return {}
    attempts: dict[str, list[Attempt]] = {job: [] for job in jobs}
    for row in conn.execute(_ATTEMPTS, ids):
        attempts[row.job_id].append(Attempt(*row))
    nodes = _nodes_of(conn, jobs)
    since_us = throughput.since_us((job.spec.health for job in jobs.values()), now_us)
    reported = throughput.reported(conn, list(jobs), since_us)
    spent = ledger.spent_microusd(conn, list(jobs), now_us)
    return {
        job_id: View(
            job=job,
            attempts=tuple(attempts[job_id]),
            nodes=tuple(nodes[job_id]),
            throughput=tuple(reported[job_id]),
            spent_microusd=spent.get(job_id, 0),
            loaded_at_us=now_us,
        )
        for job_id, job in jobs.items()
    }


def _nodes_of(conn: Connection, jobs: dict[str, Job]) -> dict[str, list[Node]]:
    found: dict[str, list[Node]] = {job: [] for job in jobs}
    for node in read_nodes(conn, _NODES, {"jobs": list(jobs)}):
        found[node.job_id].append(node)
    return found
