"""Decisions, written by compare-and-swap on the job's version.

`commit_many` locks the jobs, drops every plan whose job has changed, checks the limits for those
that launch, and writes the rest with one statement per kind. A plan is written as a whole or not at
all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from providers.base import Offer
from spotd.domain.node import Node
from spotd.domain.plan import JOB_DECISIONS, NODE_DECISIONS, Plan
from spotd.domain.view import View
from spotd.store import ledger, limits, market, notices, schema
from spotd.store.commit_effects import (
    Change,
    applied,
    at_todays_price,
    ends,
    events_of,
    holds_its_rank,
    launches,
    new_refusal,
    seen,
)
from spotd.store.rows import node_birth, node_decisions, node_moved
from spotd.store.transaction import Transaction
from spotd.wire.parts import values_of

_jobs, _nodes = schema.jobs.c, schema.nodes.c
_DECIDED = tuple(sorted(JOB_DECISIONS))
_LOCK = (
    select(_jobs.id, _jobs.version, _jobs.notes, _jobs.last_reason, _jobs.user_name)
    .where(_jobs.id.in_(bindparam("jobs", expanding=True)))
    .order_by(_jobs.id)
    .with_for_update()
)
_UPDATE_JOB = (
    update(schema.jobs)
    .where(_jobs.id == bindparam("job"), _jobs.version == bindparam("old_version"))
    .values(
        version=_jobs.version + 1,
        claim_owner="",
        claim_until_us=0,
        last_reason=bindparam("reason"),
        due_at_us=bindparam("due"),
        **{name: bindparam(name) for name in _DECIDED},
    )
)
_DECIDE = (
    update(schema.nodes)
    .where(_nodes.id == bindparam("node"))
    .values({name: bindparam(name) for name in sorted(NODE_DECISIONS)})
)


class CommitStatus(str, Enum):
    """The outcome of a commit."""

    DONE = "done"
    STALE = "stale"  # somebody decided first
    OVER_LIMIT = "over_limit"  # the intent to launch would break a limit; nothing was written
    REJECTED = "rejected"  # an invariant of the schema forbids it: a bug, on record as an event


@dataclass(frozen=True)
class CommitResult:
    """The outcome, the job after the commit (`view`, only with DONE), and what prevented it
    (`text`): a limit, or an invariant of the schema."""

    status: CommitStatus
    view: View | None = None
    text: str = ""


class LostRaceError(Exception):
    """A job changed between its lock and its update; a lock prevents that."""


def commit_many(
    tx: Transaction,
    plans: Sequence[tuple[View, Plan]],
    markets: market.Markets,
    now_us: int,
) -> list[CommitResult]:
    """Write these plans. `markets` reads the offers.

    Raises the errors of `apply` for an invalid plan, and BrokenRuleError for one that breaks an
    invariant of the schema; nothing is written then.
    """
    ids = sorted({view.job.id for view, _ in plans})
    rows = {row.id: row for row in tx.conn.execute(_LOCK, {"jobs": ids})}
    offers: Sequence[Offer] = ()
    if any(launches(plan) for _, plan in plans):
        market.hold_offers(tx)  # a price that moves now finds these nodes, or we its news
        offers = markets.offers(tx.conn)
    room = limits.LimitRoom(
        lambda: markets.held_use(tx.conn, now_us),
        lambda job_id: ledger.spent_microusd(tx.conn, [job_id], now_us).get(job_id, 0),
    )
    accepted: list[Change] = []
    results = []
    for view, decided in plans:
        plan = at_todays_price(decided, offers)
        row = rows.get(view.job.id)
        if row is None or row.version != view.job.version:
            results.append(CommitResult(CommitStatus.STALE))
            continue
        added = launches(plan)
        obstacle = room.take(view.job, row.user_name, added) if added else ""
        if obstacle:
            results.append(CommitResult(CommitStatus.OVER_LIMIT, text=obstacle))
            continue
        after = applied(view, plan)
        accepted.append(Change(view, after, plan, row.notes))
        results.append(CommitResult(CommitStatus.DONE, seen(after)))
        del rows[view.job.id]  # a second plan for the same job is stale
        for event in events_of(plan, row.last_reason):
            tx.event(view.job.id, event, now_us)
    if accepted:
        _write(tx, accepted, offers, now_us)
    return results


def _write(
    tx: Transaction, accepted: Sequence[Change], offers: Sequence[Offer], now_us: int
) -> None:
    conn = tx.conn
    attempts = [attempt for change in accepted for attempt in change.attempts]
    if attempts:
        conn.execute(schema.attempts.insert(), [vars(attempt) for attempt in attempts])
    changed = [pair for change in accepted for pair in change.changed]
    _update_nodes(conn, [now for _, now in changed])
    added = [node for change in accepted for node in change.added]
    if added:
        conn.execute(schema.nodes.insert(), [node_birth(node) for node in added])
    moved = [pair for change in accepted for pair in change.moved]
    _move_nodes(conn, moved)
    jobs = [_job_row(change, now_us) for change in accepted]
    if conn.execute(_UPDATE_JOB, jobs).rowcount != len(jobs):
        raise LostRaceError
    if any(0 < row["due"] <= now_us for row in jobs):
        tx.due = True
    ledger.begin(tx, added, offers)
    for over, now in moved:
        ledger.hand_over(tx, over.id, now)
    for was, now in changed:
        if ends(was, now):
            ledger.end(conn, now.id, now.machine.gone_at_us or now_us)
        refusal = new_refusal(was, now)
        if refusal is not None:
            at_us = refusal.at_us or now_us
            market.refuse(tx, now.id, refusal.offer_key, refusal.code, refusal.scope, at_us)


def _update_nodes(conn: Connection, nodes: Sequence[Node]) -> None:
    if not nodes:
        return
    ordered = sorted(nodes, key=holds_its_rank)
    conn.execute(_DECIDE, [{"node": node.id, **node_decisions(node)} for node in ordered])


def _move_nodes(conn: Connection, moved: Sequence[tuple[Node, Node]]) -> None:
    """Write machines that continue in another attempt, at today's price.

    The old rows have already given up their ranks.
    """
    for over, now in moved:
        old = _nodes.id == over.id
        conn.execute(update(schema.nodes).where(old).values(token=over.token))
        rate = conn.execute(select(_nodes.rate_microusd_per_h).where(old)).scalar_one()
        row = {**node_moved(now), "rate_microusd_per_h": rate}
        conn.execute(schema.nodes.insert().values(**row))
        notices.carry(conn, over.id, now.id)


def _job_row(change: Change, now_us: int) -> dict[str, Any]:
    job = change.after.job
    decided = values_of(job, _DECIDED)
    decided["outcome"] = None if job.outcome is None else job.outcome.value
    return {
        "job": job.id,
        "old_version": change.before.job.version,
        "reason": change.plan.reason,
        "due": change.due_at_us(now_us),
        **decided,
    }
