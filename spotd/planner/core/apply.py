"""Apply a change to a view: the meaning of a plan, without a database.

Rules use it to see the effect of earlier rules. Tests use it to check that deciding again after a
commit changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from spotd.domain import states
from spotd.domain.fast_replace import changed
from spotd.domain.node import Node
from spotd.domain.plan import (
    JOB_DECISIONS,
    NODE_DECISIONS,
    AddNode,
    Change,
    ChangeJob,
    ChangeNode,
    MoveNode,
    OpenAttempt,
)
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.view import View


def apply(view: View, change: Change) -> View:
    """The view after `change`.

    Raises:
        states.IllegalTransitionError: the change is not in the transition table.
        ValueError: it sets a column that decisions do not own, or a node that is not there.
    """
    match change:
        case ChangeJob(fields):
            _own(fields, JOB_DECISIONS)
            return changed(view, job=changed(view.job, **fields))
        case OpenAttempt(attempt):
            return changed(view, attempts=(*view.attempts, attempt))
        case AddNode(node):
            return changed(view, nodes=(*view.nodes, node))
        case ChangeNode(node_id, fields):
            _own(fields, NODE_DECISIONS)
            old = _found(view, node_id)
            if "state" in fields and fields["state"] is not old.state:
                states.check(old.state, cast("NodeState", fields["state"]))
            new = changed(old, **fields)
            nodes = tuple(new if node.id == node_id else node for node in view.nodes)
            return changed(view, nodes=nodes)
        case MoveNode(node_id, node):
            over = moved(_found(view, node_id), node)
            nodes = tuple(over if other.id == node_id else other for other in view.nodes)
            return changed(view, nodes=(*nodes, node))


def moved(old: Node, new: Node) -> Node:
    """Return the earlier row of a machine that continues as `new`.

    A token names one machine and one row, so the earlier row gets a name that no cloud ever
    receives. Raises states.IllegalTransitionError if the node has already ended.
    """
    states.check(old.state, NodeState.GONE)
    return changed(
        old,
        state=NodeState.GONE,
        token=f"{old.token}/g{old.generation}",
        leave_reason=LeaveReason.DONE,
        leave_text=f"continues in attempt {new.generation}",
        left_at_us=new.moved_at_us,
    )


def _found(view: View, node_id: str) -> Node:
    match = next((node for node in view.nodes if node.id == node_id), None)
    if match is None:
        raise ValueError(f"no node {node_id} in this view")
    return match


def apply_all(view: View, changes: Iterable[Change]) -> View:
    """`apply`, one after the other."""
    for change in changes:
        view = apply(view, change)
    return view


def _own(fields: Iterable[str], owned: frozenset[str]) -> None:
    if not owned.issuperset(fields):
        foreign = ", ".join(sorted(set(fields) - owned))
        raise ValueError(f"decisions do not own {foreign}")
