"""The transition table of nodes, the source of the CHECK constraint, the diagram and the tests."""

from __future__ import annotations

from enum import Enum


class NodeState(str, Enum):
    """A node's state; the comment says what is true in it."""

    LAUNCHING = "launching"  # intent committed; the create call may or may not have happened
    BOOTING = "booting"  # instance id known; not training yet
    RUNNING = "running"  # chosen, and its first step was reported
    DRAINING = "draining"  # a notice, a cancel, a pause or a limit: save, release, stop
    TERMINATING = "terminating"  # keep calling terminate until the cloud no longer lists it
    GONE = "gone"  # the cloud no longer lists it: costs nothing more


class Outcome(str, Enum):
    """How a job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class LeaveReason(str, Enum):
    """Why a node left."""

    PREEMPTED = "preempted"
    LOST = "lost"
    BOOT_TIMEOUT = "boot_timeout"
    CAPACITY = "capacity"
    FAILED = "failed"
    DONE = "done"
    CANCELLED = "cancelled"
    OUTBID = "outbid"  # another machine is to do better; it trains on until that is ready
    MOVED = "moved"  # another place does better by now; it trains on until that is ready
    HEDGE_LOST = "hedge_lost"
    DRILL = "drill"  # struck by its own user, on purpose: says nothing of its cloud


_L = LeaveReason
# Why a draining machine trains on until its replacement is ready.
TRAINS_ON = frozenset({_L.PREEMPTED, _L.OUTBID, _L.MOVED, _L.DRILL})

_S = NodeState

TRANSITIONS: dict[NodeState, frozenset[NodeState]] = {
    _S.LAUNCHING: frozenset({_S.BOOTING, _S.TERMINATING, _S.GONE}),
    _S.BOOTING: frozenset({_S.RUNNING, _S.DRAINING, _S.TERMINATING, _S.GONE}),
    _S.RUNNING: frozenset({_S.DRAINING, _S.TERMINATING, _S.GONE}),
    _S.DRAINING: frozenset({_S.RUNNING, _S.TERMINATING, _S.GONE}),
    _S.TERMINATING: frozenset({_S.GONE}),
    _S.GONE: frozenset(),
}


class IllegalTransitionError(ValueError):
    """A decision tried a transition that the table does not have."""


def check(old: NodeState, new: NodeState) -> None:
    """Raise IllegalTransitionError unless the table allows `old` to become `new`."""
    if new not in TRANSITIONS[old]:
        raise IllegalTransitionError(f"a node cannot go from {old.value} to {new.value}")
