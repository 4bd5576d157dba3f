"""Build a plan: every rule reads the view as the rules before it left it."""

from __future__ import annotations

from typing import Any

from spotd.domain.events import Event, Severity
from spotd.domain.job import Attempt, Job
from spotd.domain.market import Market
from spotd.domain.node import Node
from spotd.domain.plan import AddNode, Change, ChangeJob, ChangeNode, MoveNode, OpenAttempt, Plan
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.view import View
from spotd.planner.core.apply import apply
from spotd.wire import DRILL_SOURCE
from spotd.wire.parts import value_of

LEAVING = frozenset({NodeState.TERMINATING, NodeState.GONE})
_STRUCK = frozenset({LeaveReason.PREEMPTED, LeaveReason.LOST, LeaveReason.FAILED})


class PlanBuilder:
    """Collects changes, events, reasons and timers; `now_us` is the only time there is."""

    def __init__(self, view: View, market: Market, now_us: int) -> None:
        self.view = view
        self.market = market
        self.now_us = now_us
        self._changes: list[Change] = []
        self._events: list[Event] = []
        self._reasons: list[str] = []
        self._wakes: list[int] = []

    # --- reading

    @property
    def job(self) -> Job:
        return self.view.job

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.view.nodes

    @property
    def current(self) -> list[Node]:
        """The newest attempt's nodes."""
        return [node for node in self.nodes if node.generation == self.job.generation]

    @property
    def ended(self) -> bool:
        """The job has its outcome; only cleaning up is left."""
        return self.job.outcome is not None

    # --- writing

    def _change(self, change: Change) -> None:
        self.view = apply(self.view, change)
        self._changes.append(change)

    def set_job(self, **fields: object) -> None:
        """Set decision columns of the job, those that differ."""
        changed_job = {
            name: value for name, value in fields.items() if value_of(self.job, name) != value
        }
        if changed_job:
            self._change(ChangeJob(changed_job))

    def set_node(self, node: Node, **fields: object) -> None:
        """Set decision columns of a node."""
        self._change(ChangeNode(node.id, fields))

    def open_attempt(self, attempt: Attempt) -> None:
        """A new generation."""
        self._change(OpenAttempt(attempt))
        self.set_job(generation=attempt.generation)

    def add_node(self, node: Node) -> None:
        """The intent to launch."""
        self._change(AddNode(node))

    def move_node(self, old: Node, new: Node) -> None:
        """Move a machine into another attempt."""
        self._change(MoveNode(old.id, new))

    def terminate(self, node: Node, reason: LeaveReason, text: str, *, keep: bool = False) -> None:
        """Terminate a node, unless it is terminating already. `keep` preserves an earlier
        reason."""
        if node.state in LEAVING:
            return
        why = (
            node.departure.leave_reason
            if keep and node.departure.leave_reason
            else blamed(node, reason)
        )
        self.set_node(
            node,
            state=NodeState.TERMINATING,
            leave_reason=why,
            leave_text=text,
            left_at_us=node.departure.left_at_us or self.now_us,
            terminating_at_us=self.now_us,
        )
        self.event("node_leaving", f"{place(node)} is terminated: {text}", node)

    def drain(self, node: Node, reason: LeaveReason | None, text: str) -> None:
        """Have a node save and release. It trains until it gets that order."""
        self.set_node(
            node,
            state=NodeState.DRAINING,
            leave_reason=blamed(node, reason),
            leave_text=text,
            left_at_us=self.now_us,
            drained_at_us=self.now_us,
        )

    def train_on(self, node: Node) -> None:
        """Take back the drain of a node that has not got the order to release."""
        self.set_node(
            node,
            state=NodeState.RUNNING,
            leave_reason=None,
            leave_text="",
            left_at_us=0,
            drained_at_us=0,
        )

    def event(
        self,
        kind: str,
        text: str,
        node: Node | None = None,
        *,
        severity: Severity = Severity.INFO,
        alert: bool = False,
        cause: str = "",
        **data: Any,
    ) -> None:
        """A sentence for the record, and for the job's routes with `alert`; of a failure with its
        cause, where it is known."""
        data |= {"cause": cause} if cause else {}
        node_id = node.id if node else ""
        key = f"{self.job.id}:{kind}"
        self._events.append(Event(kind, text, node_id, severity, alert, key, data))

    def add_reason(self, text: str) -> None:
        """A reason for `spotctl why`; the first one is the pass's own sentence."""
        if text not in self._reasons:
            self._reasons.append(text)

    def wake_at(self, at_us: float) -> None:
        """Decide again at `at_us` at the latest."""
        self._wakes.append(max(int(at_us), self.now_us + 1))

    def plan(self) -> Plan:
        """Return the finished plan."""
        reason = self._reasons[0] if self._reasons else "nothing to do"
        wake_at_us = min(self._wakes, default=0)
        changes, events = tuple(self._changes), tuple(self._events)
        return Plan(changes, events, wake_at_us, reason, tuple(self._reasons))


def blamed(node: Node, reason: LeaveReason | None) -> LeaveReason | None:
    """Why a node leaves: what a drill did to it is not its cloud's doing, nor its program's. A
    notice that its cloud gives meanwhile is."""
    real = any(notice.takes_machine and notice.source != DRILL_SOURCE for notice in node.notices)
    return LeaveReason.DRILL if node.drill and not real and reason in _STRUCK else reason


def place(node: Node) -> str:
    """A node as people name it: its generation and where it is."""
    offer = node.offer
    local = " (local)" if offer.local else ""
    rank = f" rank {node.rank}" if node.rank else ""
    return f"node g{node.generation}{rank} in {offer.provider}/{offer.zone}{local}"
