"""A job as decisions see it: one snapshot, five statements however many jobs are loaded, one more
for each that trains, and two for each that took over lately."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import BindParameter, Connection, and_, bindparam, or_, select

from spotd.model import Attempt, Job, Node, View
from spotd.states import NodeState
from spotd.store import ledger, schema, throughput
from spotd.store.rows import JOB_COLUMNS, NOT_GONE, job_of, nodes_query, read_nodes
from spotd.store.throughput import current_of
from spotd.verdicts import (
    CRASHED,
    NAN,
    NAN_AFTER_RESUME,
    STEPPED_BACK,
    STRAGGLER,
    Setbacks,
    Verdict,
)

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

VERDICT_EVENTS = 40  # so far back is looked for verdicts: who decides is called when one comes
_events = schema.events.c
_NEWEST_EVENTS = (
    select(_events.kind, _events.at_us, _events.node_id)
    .where(_events.job_id == bindparam("job"))
    .order_by(_events.id.desc())
    .limit(VERDICT_EVENTS)
)
# A job's own word alone: what nodes tell has a node.
_SETBACKS = (
    select(_events.kind, _events.data)
    .where(_events.job_id == bindparam("job"))
    .where(or_(_events.kind == CRASHED, and_(_events.kind == STEPPED_BACK, _events.node_id == "")))
    .order_by(_events.id.desc())
    .limit(8)
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
    trains = {job: current_of(nodes[job], now_us) for job in jobs}
    verdicts = _verdicts(conn, [job for job in jobs if _trains(nodes[job])])
    spent = ledger.spent_microusd(conn, list(jobs), now_us)
    return {
        job_id: View(
            job=job,
            attempts=tuple(attempts[job_id]),
            nodes=tuple(nodes[job_id]),
            throughput=tuple(reported[job_id]),
            spent_microusd=spent.get(job_id, 0),
            loaded_at_us=now_us,
            verdicts=tuple(verdicts.get(job_id, ())),
            typical_tokens_per_s=throughput.typical(conn, node)
            if (node := trains[job_id])
            else 0.0,
            setbacks=_setbacks(conn, job_id) if job.failures else Setbacks(),
        )
        for job_id, job in jobs.items()
    }


def _trains(nodes: Sequence[Node]) -> bool:
    return any(node.state is NodeState.RUNNING for node in nodes)


def _verdicts(conn: Connection, job_ids: Sequence[str]) -> dict[str, list[Verdict]]:
    found: dict[str, list[Verdict]] = {}
    for job_id in job_ids:
        newest = conn.execute(_NEWEST_EVENTS, {"job": job_id}).all()
        # Who goes back by itself is left to it.
        back = {row.node_id for row in newest if row.kind == "rolled_back"}
        for row in reversed(newest):
            own = row.kind == NAN_AFTER_RESUME and row.node_id in back
            if row.kind in (STRAGGLER, NAN, NAN_AFTER_RESUME) and not own:
                verdict = Verdict(row.kind, row.at_us, row.node_id)
                found.setdefault(job_id, []).append(verdict)
    return found


def _setbacks(conn: Connection, job_id: str) -> Setbacks:
    rows = [(row.kind, json.loads(row.data)) for row in conn.execute(_SETBACKS, {"job": job_id})]
    newest: dict[str, dict[str, Any]] = {}
    for kind, data in rows:
        newest.setdefault(kind, data)
    crashed, back = newest.get(CRASHED, {}), newest.get(STEPPED_BACK, {})
    return Setbacks(crashed.get("resumed", ""), back.get("manifest", ""), back.get("step", -1))


def _nodes_of(conn: Connection, jobs: dict[str, Job]) -> dict[str, list[Node]]:
    found: dict[str, list[Node]] = {job: [] for job in jobs}
    for node in read_nodes(conn, _NODES, {"jobs": list(jobs)}):
        found[node.job_id].append(node)
    return found
