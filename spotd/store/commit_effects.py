"""The consequences of an accepted plan, without a database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from providers.base import Offer
from spotd.domain.events import Event, Severity
from spotd.domain.fast_replace import changed
from spotd.domain.job import Attempt
from spotd.domain.market import Refusal
from spotd.domain.node import Node
from spotd.domain.plan import AddNode, MoveNode, OpenAttempt, Plan
from spotd.domain.states import NodeState
from spotd.domain.view import View
from spotd.planner.core.apply import apply_all
from spotd.planner.offers.cooldowns import refusal_of

_HOLDS_ITS_RANK = frozenset({NodeState.BOOTING, NodeState.RUNNING})


@dataclass(frozen=True)
class Change:
    """An accepted plan: the job before and after it."""

    before: View
    after: View
    plan: Plan
    notes: int  # observations by now: more than the plan has seen means that the job is due again

    @property
    def added(self) -> list[Node]:
        ids = {node.id for node in launches(self.plan)}
        return [node for node in self.after.nodes if node.id in ids]

    @property
    def changed(self) -> list[tuple[Node, Node]]:
        """(before, after) of every node that the plan changes."""
        old = {node.id: node for node in self.before.nodes}
        pairs = [(old[node.id], node) for node in self.after.nodes if node.id in old]
        return [(was, now) for was, now in pairs if was is not now and was != now]

    @property
    def moved(self) -> list[tuple[Node, Node]]:
        """(old row, new row) of every machine that continues in another attempt."""
        now = {node.id: node for node in self.after.nodes}
        moves = [c for c in self.plan.changes if isinstance(c, MoveNode)]
        return [(now[move.node_id], now[move.node.id]) for move in moves]

    @property
    def attempts(self) -> list[Attempt]:
        return [c.attempt for c in self.plan.changes if isinstance(c, OpenAttempt)]

    def due_at_us(self, now_us: int) -> int:
        """When to decide again; 0 if only an observation can make the job due."""
        job = self.after.job
        return now_us if self.notes > job.wakeup.notes_seen else job.wakeup.wake_at_us


def launches(plan: Plan) -> list[Node]:
    """The nodes that the plan launches."""
    return [change.node for change in plan.changes if isinstance(change, AddNode)]


def at_todays_price(plan: Plan, offers: Sequence[Offer]) -> Plan:
    """The plan with the higher of the price decided on and the price now.

    Prices may have moved since the market was loaded; the higher one counts in limits and ledger
    until the next change.
    """
    if not launches(plan):
        return plan
    now = {offer.key: offer for offer in offers}
    changes = list(plan.changes)
    for at, change in enumerate(changes):
        if isinstance(change, AddNode):
            old = change.node.offer
            both = (old, now.get(old.key, old))
            dearer = max(both, key=lambda offer: offer.price_microusd_per_h)
            changes[at] = AddNode(changed(change.node, offer=dearer))
    return changed(plan, changes=tuple(changes))


def applied(view: View, plan: Plan) -> View:
    """Return the view with the plan written. Raises the errors of `apply` for an invalid plan."""
    after = apply_all(view, plan.changes)
    job = changed(
        after.job,
        version=view.job.version + 1,
        wake_at_us=plan.wake_at_us,
        notes_seen=view.job.wakeup.notes,
    )
    return changed(after, job=job)


def seen(view: View) -> View:
    """The view as `load_view` shows it: of gone nodes only those of the newest attempt."""
    return changed(view, nodes=shown(view.nodes, view.job.generation))


def shown(nodes: Iterable[Node], generation: int) -> tuple[Node, ...]:
    """The nodes that decisions see when `generation` is the newest."""
    return tuple(n for n in nodes if n.state is not NodeState.GONE or n.generation == generation)


def events_of(plan: Plan, last_reason: str) -> list[Event]:
    """The events to record: the plan's, and its reason if that changed."""
    if plan.reason == last_reason:
        return list(plan.events)
    data = {"reasons": list(plan.reasons)} if len(plan.reasons) > 1 else {}
    return [*plan.events, Event("pass", plan.reason, data=data)]


def ends(was: Node, now: Node) -> bool:
    """The node stops costing."""
    return now.state is NodeState.GONE and was.state is not NodeState.GONE


def new_refusal(was: Node, now: Node) -> Refusal | None:
    """The refusal of the node's offer that is new with this change."""
    refusal = refusal_of(now)
    return None if refusal == refusal_of(was) else refusal


def holds_its_rank(node: Node) -> bool:
    """Whether the node, if chosen, excludes any other of its job and rank.

    Nodes that cease to are written first: the next one must find the rank free.
    """
    return node.state in _HOLDS_ITS_RANK


def rejection(job_id: str, text: str) -> Event:
    """The event of a plan that breaks an invariant of the schema, as `text` says."""
    words = f"a decision breaks an invariant and was not written; please report this: {text}"
    key = f"{job_id}:plan_rejected"
    return Event("plan_rejected", words, severity=Severity.ERROR, alert=True, key=key)
