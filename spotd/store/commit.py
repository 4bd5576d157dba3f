"""Decisions, written by compare-and-swap on the job's version.

`commit_many` locks the jobs, drops every plan whose job has moved, checks the limits for those
that launch, and writes what is left with one statement a kind. All or nothing per job: a plan is
accepted whole or leaves no trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select, update

from providers.base import Offer
from spotd.decide.apply import apply_all
from spotd.decide.cooldowns import refusal_of
from spotd.model import (
    Attempt,
    Event,
    Node,
    View,
)
from spotd.plan import (
    JOB_DECISIONS,
    AddNode,
    OpenAttempt,
    Plan,
)
from spotd.states import NodeState
from spotd.store import ledger, limits, market, schema
from spotd.store.base import CommitResult, CommitStatus
from spotd.store.rows import node_birth, node_decisions
from spotd.store.transaction import Transaction

_jobs, _nodes = schema.jobs.c, schema.nodes.c
_DECIDED = tuple(sorted(JOB_DECISIONS))
_LOCK = (
    select(_jobs.id, _jobs.version, _jobs.notes, _jobs.last_reason)
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


class LostRaceError(Exception):
    """A job moved between its lock and its update: cannot happen while the lock is a lock."""


@dataclass(frozen=True)
class _Change:
    """A plan that is accepted: the job before and after it."""

    before: View
    after: View
    plan: Plan
    notes: int  # observations by now: more than the plan has seen means that the job is due again

    @property
    def added(self) -> list[Node]:
        ids = {change.node.id for change in self.plan.changes if isinstance(change, AddNode)}
        return [node for node in self.after.nodes if node.id in ids]

    @property
    def changed(self) -> list[tuple[Node, Node]]:
        """(before, after) of every node that the plan changes."""
        old = {node.id: node for node in self.before.nodes}
        pairs = [(old[node.id], node) for node in self.after.nodes if node.id in old]
        return [(was, now) for was, now in pairs if was != now]

    @property
    def attempts(self) -> list[Attempt]:
        return [c.attempt for c in self.plan.changes if isinstance(c, OpenAttempt)]


def commit_many(
    tx: Transaction,
    plans: Sequence[tuple[View, Plan]],
    on_sale: Callable[[Connection], Sequence[Offer]],
    now_us: int,
) -> list[CommitResult]:
    """See Store.commit_many. `on_sale` reads the offers. Raises what `apply` raises for a plan that
    is no plan, and IntegrityError when one breaks an invariant of the schema: nothing is written
    then."""
    ids = sorted({view.job.id for view, _ in plans})
    rows = {row.id: row for row in tx.conn.execute(_LOCK, {"jobs": ids})}
    offers: Sequence[Offer] = ()
    if any(isinstance(change, AddNode) for _, plan in plans for change in plan.changes):
        market.hold_offers(tx)  # a price that moves now finds these nodes, or we its news
        offers = on_sale(tx.conn)
    room = limits.Room(tx.conn, now_us)
    accepted: list[_Change] = []
    results = []
    for view, decided in plans:
        plan = _at_todays_price(decided, offers)
        row = rows.get(view.job.id)
        if row is None or row.version != view.job.version:
            results.append(CommitResult(CommitStatus.STALE))
            continue
        added = [change.node for change in plan.changes if isinstance(change, AddNode)]
        obstacle = room.take(view.job, added) if added else ""
        if obstacle:
            results.append(CommitResult(CommitStatus.OVER_LIMIT, text=obstacle))
            continue
        after = _applied(view, plan)
        accepted.append(_Change(view, after, plan, row.notes))
        results.append(CommitResult(CommitStatus.DONE, _seen(after)))
        del rows[view.job.id]  # a second plan for the same job is stale
        _tell(tx, view, plan, row, now_us)
    if accepted:
        _write(tx, accepted, offers, now_us)
    return results


def _at_todays_price(plan: Plan, offers: Sequence[Offer]) -> Plan:
    """Prices may have moved since the market was loaded: what was decided on, or what is asked now,
    whichever is higher, counts in the limits and in the ledger until the next change."""
    now = {offer.key: offer for offer in offers}
    changes = list(plan.changes)
    for at, change in enumerate(changes):
        if isinstance(change, AddNode):
            old = change.node.offer
            both = (old, now.get(old.key, old))
            dearer = max(both, key=lambda offer: offer.price_microusd_per_h)
            changes[at] = AddNode(replace(change.node, offer=dearer))
    return replace(plan, changes=tuple(changes))


def _applied(view: View, plan: Plan) -> View:
    after = apply_all(view, plan.changes)
    job = replace(
        after.job,
        version=view.job.version + 1,
        wake_at_us=plan.wake_at_us,
        notes_seen=view.job.notes,
    )
    return replace(after, job=job)


def _seen(view: View) -> View:
    """As `load_view` would show it: nodes that are gone only of the newest attempt."""
    newest = view.job.generation
    kept = (n for n in view.nodes if n.state is not NodeState.GONE or n.generation == newest)
    return replace(view, nodes=tuple(kept))


def _tell(
    tx: Transaction, view: View, plan: Plan, row: Row[Any, Any, Any, Any], now_us: int
) -> None:
    job_id = view.job.id
    for event in plan.events:
        tx.event(job_id, event, now_us)
    if plan.reason != row.last_reason:
        data = {"reasons": list(plan.reasons)} if len(plan.reasons) > 1 else {}
        tx.event(job_id, Event("pass", plan.reason, data=data), now_us)


def _write(
    tx: Transaction, accepted: Sequence[_Change], offers: Sequence[Offer], now_us: int
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
    jobs = [_job_row(change, now_us) for change in accepted]
    if conn.execute(_UPDATE_JOB, jobs).rowcount != len(jobs):
        raise LostRaceError
    if any(0 < row["due"] <= now_us for row in jobs):
        tx.due = True
    ledger.begin(tx, added, offers)
    for was, now in changed:
        if now.state is NodeState.GONE and was.state is not NodeState.GONE:
            ledger.end(conn, now.id, now.gone_at_us or now_us)
        said = refusal_of(now)
        if said is not None and said != refusal_of(was):
            at_us = said.at_us or now_us
            market.refuse(tx, now.id, said.offer_key, said.code, said.scope, at_us)


def _update_nodes(conn: Connection, nodes: Sequence[Node]) -> None:
    if not nodes:
        return
    rows = [{"node": node.id, **node_decisions(node)} for node in nodes]
    values: dict[str, Any] = {name: bindparam(name) for name in rows[0] if name != "node"}
    # Rows that stop being chosen come first: the new chosen one of a rank must find the place free.
    rows.sort(key=lambda row: row["state"] in ("booting", "running"))
    statement = update(schema.nodes).where(_nodes.id == bindparam("node")).values(values)
    conn.execute(statement, rows)


def _job_row(change: _Change, now_us: int) -> dict[str, Any]:
    job = change.after.job
    decided = {name: getattr(job, name) for name in _DECIDED}
    decided["outcome"] = None if job.outcome is None else job.outcome.value
    return {
        "job": job.id,
        "old_version": change.before.job.version,
        "reason": change.plan.reason,
        "due": now_us if change.notes > job.notes_seen else job.wake_at_us,
        **decided,
    }
