"""The record: events, checkpoints, progress and log offsets, and how old ones are dropped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, case, delete, exists, func, insert, select, update

from spotd.domain.events import Event, Severity
from spotd.domain.states import LeaveReason
from spotd.planner.core.checkpoint_interval import ObservedLifetimes
from spotd.store import schema
from spotd.store.interface import CheckpointRow, EventRow, ProgressRow
from spotd.store.journal_entries import IMAGE_FOUND
from spotd.store.rows import numbers
from spotd.store.transaction import Transaction

PRUNE_ROWS = 2000  # deleted in one transaction, so that nobody waits long for the lock

_events, _progress, _offsets = schema.events.c, schema.progress.c, schema.log_offsets.c


def add_event(tx: Transaction, job_id: str, event: Event, at_us: int) -> None:
    """See Store.add_event. A job that is not (or no longer) known leaves it to the deployment."""
    jobs = schema.jobs.c
    known = tx.conn.execute(select(jobs.id).where(jobs.id == job_id)).scalar_one_or_none()
    tx.event(known or "", event, at_us)


def events(conn: Connection, job_id: str | None, after_id: int, limit: int) -> list[EventRow]:
    """See Store.events: oldest first."""
    query = select(schema.events).where(_events.id > after_id).order_by(_events.id).limit(limit)
    if job_id is not None:
        query = query.where(_events.job_id == job_id)
    return [_event_row(row) for row in conn.execute(query)]


def last_event(conn: Connection, job_id: str, kind: str) -> EventRow | None:
    """See Store.last_event."""
    query = select(schema.events).where(_events.job_id == job_id, _events.kind == kind)
    row = conn.execute(query.order_by(_events.id.desc()).limit(1)).one_or_none()
    return _event_row(row) if row is not None else None


def events_of(
    conn: Connection, job_id: str | None, kinds: Sequence[str], since_us: int
) -> list[EventRow]:
    """See Store.events_of, and LifeRecords.own_events for None."""
    mine = (_events.job_id == job_id, _events.kind.in_(kinds), _events.at_us >= since_us)
    query = select(schema.events).where(*mine).order_by(_events.id)
    return [_event_row(row) for row in conn.execute(query)]


def _event_row(row: Any) -> EventRow:
    return EventRow(
        id=row.id,
        at_us=row.at_us,
        job_id=row.job_id or "",
        event=Event(
            kind=row.kind,
            text=row.text,
            node_id=row.node_id,
            severity=Severity(row.severity),
            alert=row.alert,
            key=row.key,
            data=json.loads(row.data),
        ),
    )


def image_digest(conn: Connection, job_id: str) -> str:
    """See Store.image_digest."""
    query = select(_events.data).where(_events.job_id == job_id, _events.kind == IMAGE_FOUND)
    data = conn.execute(query.order_by(_events.id).limit(1)).scalar_one_or_none()
    return str(json.loads(data).get("digest", "")) if data else ""


def lives(conn: Connection, since_us: int) -> list[ObservedLifetimes]:
    """See Store.lives. A machine lived from its launch until we heard of its end; of one that lives
    on, up to when it was last seen or heard."""
    nodes = schema.nodes.c
    began = case((nodes.launched_at_us > since_us, nodes.launched_at_us), else_=since_us)
    heard = case((nodes.heard_at_us > nodes.seen_at_us, nodes.heard_at_us), else_=nodes.seen_at_us)
    ended = case((nodes.left_at_us > 0, nodes.left_at_us), else_=heard)
    lost = nodes.leave_reason.in_([LeaveReason.PREEMPTED.value, LeaveReason.LOST.value])
    query = (
        select(nodes.offer_key, func.sum(ended - began), func.sum(case((lost, 1), else_=0)))
        .where(nodes.launched_at_us > 0, ended > began)
        .group_by(nodes.offer_key)
        .order_by(nodes.offer_key)
    )
    return [
        ObservedLifetimes(key, int(time_us), int(losses))
        for key, time_us, losses in conn.execute(query)
    ]


def checkpoints(conn: Connection, job_id: str) -> list[CheckpointRow]:
    """Oldest first."""
    table = schema.checkpoints
    query = (
        select(table)
        .where(table.c.job_id == job_id)
        .order_by(table.c.committed_at_us, table.c.generation, table.c.step)
    )
    names = CheckpointRow.__dataclass_fields__
    return [CheckpointRow(**{n: row[n] for n in names}) for row in conn.execute(query).mappings()]


def progress(conn: Connection, job_id: str, after: int) -> list[ProgressRow]:
    """See Store.progress."""
    query = (
        select(schema.progress)
        .where(_progress.job_id == job_id, _progress.id > after)
        .order_by(_progress.id)
    )
    names = [name for name in ProgressRow.__dataclass_fields__ if name != "losses"]
    return [
        ProgressRow(**{name: row[name] for name in names}, losses=numbers(row["losses"]))
        for row in conn.execute(query).mappings()
    ]


def log_offsets(conn: Connection, job_id: str) -> dict[tuple[int, int, str], int]:
    """See Store.log_offsets. Candidates that were never chosen have logs of their own: the
    furthest of one generation and rank counts."""
    nodes = schema.nodes.c
    query = (
        select(nodes.generation, nodes.rank, _offsets.stream, _offsets.stored_bytes)
        .join_from(schema.log_offsets, schema.nodes, nodes.id == _offsets.node_id)
        .where(nodes.job_id == job_id)
        .order_by(_offsets.stored_bytes)
    )
    return {(row.generation, row.rank, row.stream): row.stored_bytes for row in conn.execute(query)}


def record_log_offset(tx: Transaction, node_id: str, stream: str, offset: int) -> None:
    """See Store.record_log_offset; never goes back, and a node nobody knows is passed over."""
    table = schema.log_offsets
    where = (_offsets.node_id == node_id) & (_offsets.stream == stream)
    known = tx.conn.execute(select(_offsets.stored_bytes).where(where)).scalar_one_or_none()
    if known is None:
        row: dict[str, Any] = {"node_id": node_id, "stream": stream, "stored_bytes": offset}
        nodes = schema.nodes.c
        exists = select(nodes.id).where(nodes.id == node_id)
        if tx.conn.execute(exists).scalar_one_or_none() is not None:
            tx.conn.execute(insert(table).values(**row))
    elif known < offset:
        tx.conn.execute(update(table).where(where).values(stored_bytes=offset))


def prune_some(conn: Connection, before_us: int) -> int:
    """Delete up to PRUNE_ROWS of each kind; the number of rows deleted."""
    unfinished = select(schema.jobs.c.id).where(schema.jobs.c.outcome.is_(None))
    pins = (_events.kind == IMAGE_FOUND) & _events.job_id.in_(unfinished)
    alerts, history, refusals = schema.alerts, schema.price_history, schema.refusals
    old = [
        # Which image a job began with stays for as long as it may go on.
        (schema.events, _events.id, (_events.at_us < before_us) & ~pins),
        (schema.progress, _progress.id, _progress.at_us < before_us),
        (alerts, alerts.c.id, (alerts.c.sent_at_us > 0) & (alerts.c.sent_at_us < before_us)),
    ]
    deleted = 0
    for table, key, condition in old:
        some = select(key).where(condition).limit(PRUNE_ROWS)
        deleted += conn.execute(delete(table).where(key.in_(some))).rowcount
    deleted += conn.execute(delete(refusals).where(refusals.c.at_us < before_us)).rowcount
    # The price that was in force then is no old one: it may be in force still.
    newer = history.alias()
    replaced = exists().where(
        newer.c.offer_key == history.c.offer_key,
        newer.c.at_us > history.c.at_us,
        newer.c.at_us <= before_us,
    )
    old_prices = delete(history).where(history.c.at_us < before_us, replaced)
    return deleted + conn.execute(old_prices).rowcount
