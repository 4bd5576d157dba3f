"""A job as decisions see it.

One snapshot: five statements however many jobs are loaded, one more where a new attempt has not
named its total of steps, one for each job that trains, and two for each that was recently taken
over by a new machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import BindParameter, Connection, bindparam, func, or_, select

from spotd.domain.health import (
    CRASHED,
    NAN,
    NAN_AFTER_RESUME,
    ROLLED_BACK,
    STEPPED_BACK,
    STRAGGLER,
    Diagnosis,
    Setbacks,
)
from spotd.domain.job import Attempt, Job
from spotd.domain.node import Node
from spotd.domain.node_history import Prerequisite
from spotd.domain.preferences import GenerationSaves
from spotd.domain.states import NodeState, Outcome
from spotd.domain.view import View
from spotd.domain.work_total import named_total, with_total
from spotd.store import ledger, progress, schema
from spotd.store.hand_overs import hand_over_of
from spotd.store.progress import current_of
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

SETBACK_EVENTS = 100  # crashes are few: max_restarts_on_errors of them end a job
VERDICT_EVENTS = 40  # so far back is looked for verdicts: who decides is called when one comes
_events = schema.events.c
_NEWEST_EVENTS = (
    select(_events.kind, _events.at_us, _events.node_id)
    .where(_events.job_id == bindparam("job"))
    .order_by(_events.id.desc())
    .limit(VERDICT_EVENTS)
)
_SETBACKS = (
    select(_events.kind, _events.node_id, _events.data)
    .where(_events.job_id == bindparam("job"), _events.kind.in_((CRASHED, STEPPED_BACK)))
    .order_by(_events.id.desc())
    .limit(SETBACK_EVENTS)
)
_saves = schema.checkpoints.c
_SAVED = (
    select(
        _saves.job_id,
        _saves.generation,
        func.min(_saves.step),
        func.max(_saves.step),
        func.min(_saves.committed_at_us),
        func.max(_saves.committed_at_us),
        func.max(_saves.bytes),
    )
    .where(_saves.job_id.in_(_IDS))
    .group_by(_saves.job_id, _saves.generation)
    .order_by(_saves.job_id, _saves.generation)
)
# Oldest first: the newest attempt whose program named a total counts.
_NAMED_TOTALS = (
    select(_nodes.job_id, _nodes.total_steps)
    .where(_nodes.job_id.in_(_IDS), _nodes.total_steps != 0)
    .order_by(_nodes.generation)
)
_BEFORE = select(
    _jobs.id,
    _jobs.name,
    _jobs.outcome,
    _jobs.outcome_text,
    _jobs.finished_at_us,
).where(_jobs.id.in_(_IDS))


def load_views(conn: Connection, job_ids: Sequence[str], now_us: int) -> dict[str, View]:
    """Load the views of these jobs; unknown ones are left out."""
    ids: dict[str, Any] = {"jobs": list(job_ids)}
    jobs = {row.id: job_of(row) for row in conn.execute(_JOBS, ids)}
    if not jobs:
        return {}
    attempts: dict[str, list[Attempt]] = {job: [] for job in jobs}
    for row in conn.execute(_ATTEMPTS, ids):
        attempts[row.job_id].append(Attempt(*row))
    nodes = _nodes_of(conn, jobs)
    jobs = _with_totals(conn, jobs, nodes)
    since_us = progress.since_us((job.spec.monitoring.health for job in jobs.values()), now_us)
    reported = progress.reported(conn, list(jobs), since_us)
    trains = {job: current_of(nodes[job], now_us) for job in jobs}
    verdicts = _verdicts(conn, [job for job in jobs if _trains(nodes[job])])
    spent = ledger.spent_microusd(conn, list(jobs), now_us)
    before = _before(conn, [job.spec.queue.after for job in jobs.values() if job.spec.queue.after])
    saved = _saved(conn, [job.id for job in jobs.values() if job.spec.preferences.measurable])
    return {
        job_id: View(
            job=job,
            attempts=tuple(attempts[job_id]),
            nodes=tuple(nodes[job_id]),
            throughput=tuple(reported[job_id]),
            spent_microusd=spent.get(job_id, 0),
            loaded_at_us=now_us,
            verdicts=verdicts.get(job_id, ()),
            typical_tokens_per_s=progress.typical(conn, node) if (node := trains[job_id]) else 0.0,
            saved=tuple(saved.get(job_id, ())),
            setbacks=_setbacks(conn, job_id) if job.backoff.failures else Setbacks(),
            before=before.get(job.spec.queue.after),
            hand_over=hand_over_of(conn, job, nodes[job_id]),
        )
        for job_id, job in jobs.items()
    }


def _with_totals(
    conn: Connection, jobs: Mapping[str, Job], nodes: Mapping[str, Sequence[Node]]
) -> dict[str, Job]:
    """Return the jobs with the totals that their programs named, where their files have none.

    The program of an earlier attempt is asked for once the newest one has not named any yet.
    """
    named = {job_id: named_total(nodes[job_id]) for job_id in jobs}
    earlier = [
        job_id
        for job_id, job in jobs.items()
        if job.generation > 1 and not named[job_id] and not job.spec.preferences.measurable
    ]
    if earlier:
        rows = conn.execute(_NAMED_TOTALS, {"jobs": earlier})
        named |= {row.job_id: max(row.total_steps, 0) for row in rows}
    return {job_id: with_total(job, named[job_id]) for job_id, job in jobs.items()}


def _before(conn: Connection, job_ids: Sequence[str]) -> dict[str, Prerequisite]:
    if not job_ids:
        return {}
    rows = conn.execute(_BEFORE, {"jobs": list(job_ids)})
    return {
        job_id: Prerequisite(name, Outcome(outcome) if outcome else None, *rest)
        for job_id, name, outcome, *rest in rows
    }


def _saved(conn: Connection, job_ids: Sequence[str]) -> dict[str, list[GenerationSaves]]:
    saves: dict[str, list[GenerationSaves]] = {}
    if job_ids:
        for job_id, *values in conn.execute(_SAVED, {"jobs": list(job_ids)}):
            saves.setdefault(job_id, []).append(GenerationSaves(*values))
    return saves


def _trains(nodes: Sequence[Node]) -> bool:
    return any(node.state is NodeState.RUNNING for node in nodes)


def _verdicts(conn: Connection, job_ids: Sequence[str]) -> dict[str, tuple[Diagnosis, ...]]:
    verdicts = {}
    for job_id in job_ids:
        newest = conn.execute(_NEWEST_EVENTS, {"job": job_id}).all()
        verdicts[job_id] = verdicts_of([Diagnosis(*row) for row in reversed(newest)])
    return verdicts


def verdicts_of(events: Sequence[Diagnosis]) -> tuple[Diagnosis, ...]:
    """The diagnoses among a job's newest events, oldest first, that decisions use.

    A program that goes back from diverged losses by itself is left alone.
    """
    back = {one.node_id for one in events if one.kind == ROLLED_BACK}
    return tuple(
        one
        for one in events
        if one.kind in (STRAGGLER, NAN)
        or (one.kind == NAN_AFTER_RESUME and one.node_id not in back)
    )


def _setbacks(conn: Connection, job_id: str) -> Setbacks:
    rows = conn.execute(_SETBACKS, {"job": job_id})
    return setbacks_of((row.kind, row.node_id, json.loads(row.data)) for row in rows)


def setbacks_of(events: Iterable[tuple[str, str, Mapping[str, Any]]]) -> Setbacks:
    """The setbacks in a job's events (kind, node, data), newest first.

    Events from nodes name a node; a step back of the job names none.
    """
    newest: dict[str, Mapping[str, Any]] = {}
    for kind, node_id, data in events:
        if kind == CRASHED or (kind == STEPPED_BACK and not node_id):
            newest.setdefault(kind, data)
    crashed, back = newest.get(CRASHED, {}), newest.get(STEPPED_BACK, {})
    return Setbacks(crashed.get("resumed", ""), back.get("manifest", ""), back.get("step", -1))


def _nodes_of(conn: Connection, jobs: dict[str, Job]) -> dict[str, list[Node]]:
    nodes: dict[str, list[Node]] = {job: [] for job in jobs}
    for node in read_nodes(conn, _NODES, {"jobs": list(jobs)}):
        nodes[node.job_id].append(node)
    return nodes
