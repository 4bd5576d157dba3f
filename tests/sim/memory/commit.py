"""Decisions, written by compare-and-swap on the job's version; and what may never be written."""

from __future__ import annotations

from collections.abc import Sequence

from providers.base import Offer
from spotd.domain.fast_replace import changed
from spotd.domain.job import Attempt
from spotd.domain.node import Node
from spotd.domain.plan import JOB_DECISIONS, NODE_DECISIONS, Plan
from spotd.domain.states import NodeState
from spotd.domain.view import View
from spotd.store import commit_effects
from spotd.store.columns import clean
from spotd.store.commit import CommitResult, CommitStatus
from spotd.store.commit_effects import Change
from spotd.store.engine import BrokenRuleError
from spotd.store.limits import LimitRoom
from spotd.store.rows import MACHINE, NODE_BIRTH
from spotd.wire.parts import build, values_of
from tests.sim.memory import ledger, market
from tests.sim.memory.line import held_use
from tests.sim.memory.transaction import Transaction

_JOB = tuple(sorted(JOB_DECISIONS))
_NODE = tuple(sorted(NODE_DECISIONS))


def commit_many(
    tx: Transaction, plans: Sequence[tuple[View, Plan]], now_us: int
) -> list[CommitResult]:
    """See Store.commit_many. Raises what `apply` raises for a plan that is not a plan, and
    BrokenRuleError when one breaks an invariant: nothing is written then."""
    tables = tx.tables
    launching = any(commit_effects.launches(plan) for _, plan in plans)
    offers = market.on_sale(tables) if launching else ()
    room = LimitRoom(
        lambda: held_use(tables, *market.committed_use(tables), now_us),
        lambda job_id: ledger.spent_microusd(tables, job_id, now_us),
    )
    changes: dict[str, Change] = {}
    results = []
    for view, decided in plans:
        plan = commit_effects.at_todays_price(decided, offers)
        job = tables.jobs.get(view.job.id)
        if job is None or job.version != view.job.version or job.id in changes:
            results.append(CommitResult(CommitStatus.STALE))
            continue
        added = commit_effects.launches(plan)
        obstacle = room.take(view.job, tables.submissions[job.id].user, added) if added else ""
        if obstacle:
            results.append(CommitResult(CommitStatus.OVER_LIMIT, text=obstacle))
            continue
        after = commit_effects.applied(view, plan)
        changes[job.id] = Change(view, after, plan, job.wakeup.notes)
        results.append(CommitResult(CommitStatus.DONE, commit_effects.seen(after)))
        for event in commit_effects.events_of(plan, tables.reasons.get(job.id, "")):
            tx.event(job.id, event, now_us)
    _write(tx, list(changes.values()), offers, now_us)
    return results


def _write(
    tx: Transaction, changes: Sequence[Change], offers: Sequence[Offer], now_us: int
) -> None:
    for change in changes:
        for attempt in change.attempts:
            _open(tx, attempt)
    pairs = [pair for change in changes for pair in change.changed]
    for node in sorted((now for _, now in pairs), key=commit_effects.holds_its_rank):
        _decide(tx, node)
    added = [node for change in changes for node in change.added]
    for node in added:
        _add(tx, node)
    moved = [pair for change in changes for pair in change.moved]
    for over, now in moved:
        _move(tx, over, now)
    for change in changes:
        _write_job(tx, change, now_us)
    ledger.begin(tx, added, offers)
    for over, now in moved:
        ledger.hand_over(tx, over.id, now)
    for was, now in pairs:
        if commit_effects.ends(was, now):
            ledger.end(tx, now.id, now.machine.gone_at_us or now_us)
        said = commit_effects.new_refusal(was, now)
        if said is not None:
            market.refuse(tx, changed(said, at_us=said.at_us or now_us))


def _open(tx: Transaction, attempt: Attempt) -> None:
    tables = tx.tables
    known = tables.attempts.get(attempt.job_id, ())
    if any(other.generation == attempt.generation for other in known):
        raise BrokenRuleError(f"{attempt.job_id} has a generation {attempt.generation} already")
    _rule(attempt.job_id in tables.jobs, f"there is no job {attempt.job_id}")
    now = sorted((*known, attempt), key=lambda item: item.generation)
    tx.put(tables.attempts, attempt.job_id, tuple(now))


def _decide(tx: Transaction, node: Node) -> None:
    stored = tx.tables.nodes.get(node.id)
    if stored is not None:
        _place(tx, stored, tx.decide_node(stored, **values_of(node, _NODE)))


def _add(tx: Transaction, node: Node) -> None:
    """A new node: whatever else `node` says, nothing was observed of it yet."""
    tables = tx.tables
    _rule(node.id not in tables.nodes, f"there is a node {node.id} already")
    _rule(node.token not in tables.tokens, f"the token {node.token} is taken")
    attempts = tables.attempts.get(node.job_id, ())
    _rule(
        any(attempt.generation == node.generation for attempt in attempts),
        f"there is no attempt {node.generation} of {node.job_id}",
    )
    birth = values_of(node, NODE_BIRTH)
    born = build(Node, {**birth, "offer": node.offer, "state": node.state})
    now = tx.decide_node(born, **values_of(node, _NODE))
    tx.put(tables.tokens, node.token, node.id)
    all_of_job = tables.by_age((*tables.nodes_of.get(node.job_id, ()), node.id))
    tx.put(tables.nodes_of, node.job_id, tuple(other.id for other in all_of_job))
    _place(tx, None, now)


def _move(tx: Transaction, over: Node, node: Node) -> None:
    """A machine's row in another attempt, with what is known of the machine."""
    tx.drop(tx.tables.tokens, node.token)
    tx.put(tx.tables.tokens, over.token, over.id)
    tx.decide_node(tx.tables.nodes[over.id], token=over.token)
    _add(tx, node)
    old = tx.tables.nodes[over.id]
    known = values_of(node, MACHINE)
    tx.change_node(tx.tables.nodes[node.id], **known, offer=old.offer, notices=old.notices)


def _place(tx: Transaction, was: Node | None, now: Node) -> None:
    """Keep what is found by a node's state: it is active, and it holds its rank."""
    tables = tx.tables
    if now.state is NodeState.GONE:
        tx.drop(tables.active, now.id)
    elif now.id not in tables.active:
        tx.put(tables.active, now.id, None)
    rank = (now.job_id, now.rank)
    held = was is not None and was.chosen and commit_effects.holds_its_rank(was)
    holds = now.chosen and commit_effects.holds_its_rank(now)
    if holds and not held:
        _rule(rank not in tables.ranks, f"two chosen nodes of {now.job_id} have rank {now.rank}")
        tx.put(tables.ranks, rank, now.id)
    elif held and not holds:
        tx.drop(tables.ranks, rank)


def _write_job(tx: Transaction, change: Change, now_us: int) -> None:
    tables = tx.tables
    after = change.after.job
    job = tables.jobs[after.id]
    if after.outcome is not None:
        if tables.unfinished.get(job.name) == job.id:
            tx.drop(tables.unfinished, job.name)
    elif tables.unfinished.get(job.name) != job.id:
        _rule(job.name not in tables.unfinished, f"two unfinished jobs are called {job.name}")
        tx.put(tables.unfinished, job.name, job.id)
    if after.generation != job.generation:
        tables.shown.pop(job.id, None)
    tx.change_job(job, version=job.version + 1, **values_of(after, _JOB))
    tx.put(tables.reasons, job.id, clean(change.plan.reason))
    tx.drop(tables.claims, job.id)
    due_us = change.due_at_us(now_us)
    if due_us > 0:
        tx.put(tables.due, job.id, due_us)
    else:
        tx.drop(tables.due, job.id)
    tx.due = tx.due or 0 < due_us <= now_us


def _rule(holds: bool, text: str) -> None:
    if not holds:
        raise BrokenRuleError(text)
