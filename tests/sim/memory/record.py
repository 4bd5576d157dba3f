"""The record: events, checkpoints, progress and log offsets, and how old ones are dropped."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from spotd.domain.events import Event
from spotd.domain.states import LeaveReason
from spotd.history.recent_rate import StepWindow
from spotd.planner.core.checkpoint_interval import ObservedLifetimes
from spotd.store.checkpoints import CheckpointRow
from spotd.store.events import EventRow
from spotd.store.journal_entries import IMAGE_FOUND
from spotd.store.progress import ProgressRow
from tests.sim.memory.tables import Tables
from tests.sim.memory.transaction import Transaction


def add_event(tx: Transaction, job_id: str, event: Event, at_us: int) -> None:
    """See Store.events.add. A job that is not known leaves it to the deployment."""
    tx.event(job_id if job_id in tx.tables.jobs else "", event, at_us)


def events(tables: Tables, job_id: str | None, after_id: int, limit: int) -> list[EventRow]:
    """See Store.events.rows: oldest first."""
    rows = tables.events if job_id is None else tables.events_of.get(job_id, [])
    first = bisect_right(rows, after_id, key=lambda row: row.id)
    return rows[first : first + limit]


def last_event(tables: Tables, job_id: str, kind: str) -> EventRow | None:
    """See Store.events.last."""
    rows = reversed(tables.events_of.get(job_id, []))
    return next((row for row in rows if row.event.kind == kind), None)


def events_of(tables: Tables, job_id: str, kinds: Sequence[str], since_us: int) -> list[EventRow]:
    """See Store.events.of_kinds."""
    rows = (row for row in tables.events_of.get(job_id, []) if row.at_us >= since_us)
    return [row for row in rows if row.event.kind in kinds]


def image_digest(tables: Tables, job_id: str) -> str:
    """See Store.events.image_digest."""
    rows = (row.event for row in tables.events_of.get(job_id, []))
    found = (str(event.data["digest"]) for event in rows if event.kind == IMAGE_FOUND)
    return next(found, "")


def lives(tables: Tables, since_us: int) -> list[ObservedLifetimes]:
    """See Store.node_history.observed_lifetimes."""
    found: dict[str, list[int]] = {}
    for node in tables.nodes.values():
        began_us = max(node.machine.launched_at_us, since_us)
        ended_us = node.departure.left_at_us or max(node.agent.heard_at_us, node.machine.seen_at_us)
        if node.machine.launched_at_us and ended_us > began_us:
            lost = node.departure.leave_reason in (LeaveReason.PREEMPTED, LeaveReason.LOST)
            time_us, losses = found.get(node.offer.key, [0, 0])
            found[node.offer.key] = [time_us + ended_us - began_us, losses + lost]
    return [ObservedLifetimes(key, *sums) for key, sums in sorted(found.items())]


def checkpoints(tables: Tables, job_id: str) -> list[CheckpointRow]:
    """Oldest first."""
    rows = [row for row in tables.checkpoints.values() if row.job_id == job_id]
    return sorted(rows, key=lambda row: (row.committed_at_us, row.generation, row.step))


def progress(tables: Tables, job_id: str, after: int) -> list[ProgressRow]:
    """See Store.progress.rows."""
    rows = tables.progress.get(job_id, [])
    return rows[bisect_right(rows, after, key=lambda row: row.id) :]


def step_windows(tables: Tables, job_ids: Iterable[str], since_us: int) -> dict[str, StepWindow]:
    """See Store.progress.windows."""
    found = {}
    for job_id in job_ids:
        rows = [row for row in tables.progress.get(job_id, []) if row.at_us > since_us]
        rows = sorted(rows, key=lambda row: (row.at_us, row.id))[:2]
        if rows:
            first = rows[0]
            begin_us = first.at_us - max(0, first.last_at_us - first.first_at_us)
            found[job_id] = StepWindow(first.from_step - 1, begin_us, len(rows))
    return found


def log_offsets(tables: Tables, job_id: str) -> dict[tuple[int, int, str], int]:
    """See Store.logs.offsets. The furthest of one generation and rank counts."""
    found: dict[tuple[int, int, str], int] = {}
    for (node_id, stream), offset in tables.log_offsets.items():
        node = tables.nodes[node_id]
        if node.job_id == job_id:
            key = (node.generation, node.rank, stream)
            found[key] = max(found.get(key, 0), offset)
    return found


def record_log_offset(tx: Transaction, node_id: str, stream: str, offset: int) -> None:
    """See Store.logs.record_offset; never goes back, and a node nobody knows is passed over."""
    known = tx.tables.log_offsets.get((node_id, stream))
    if node_id in tx.tables.nodes and (known is None or known < offset):
        tx.put(tx.tables.log_offsets, (node_id, stream), offset)


def prune(tx: Transaction, before_us: int) -> int:
    """See Store.events.prune."""
    tables = tx.tables
    going = {job_id for job_id, job in tables.jobs.items() if job.outcome is None}
    kept = [
        row
        for row in tables.events
        if row.at_us >= before_us or (row.event.kind == IMAGE_FOUND and row.job_id in going)
    ]
    deleted = len(tables.events) - len(kept)
    tx.put(vars(tables), "events", kept)
    mine: dict[str, list[EventRow]] = {}
    for row in kept:
        mine.setdefault(row.job_id, []).append(row)
    tx.put(vars(tables), "events_of", mine)
    for job_id, rows in tables.progress.items():
        left = [row for row in rows if row.at_us >= before_us]
        deleted += len(rows) - len(left)
        tx.put(tables.progress, job_id, left)
    for key, reports in tables.reports.items():
        tx.put(tables.reports, key, [row for row in reports if row.at_us >= before_us])
    messages = [number for number, row in tables.delivered.items() if row.sent_at_us < before_us]
    for number in messages:
        tx.drop(tables.delivered, number)
    in_force: dict[str, int] = {}
    for offer_key, at_us in tables.price_history:
        if at_us <= before_us:
            in_force[offer_key] = max(at_us, in_force.get(offer_key, 0))
    prices = [key for key in tables.price_history if key[1] < in_force.get(key[0], 0)]
    for price in prices:
        tx.drop(tables.price_history, price)
    refusals = [key for key, row in tables.refusals.items() if row.at_us < before_us]
    for refusal in refusals:
        tx.drop(tables.refusals, refusal)
    return deleted + len(messages) + len(prices) + len(refusals)
