"""The result of a decision: changes, the plan, and the calls to make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spotd.domain.events import Event
from spotd.domain.job import Attempt, Job
from spotd.domain.node import EffectKind, Node

# Changes are the only things that a decision can do: store/commit.py writes them, and
# planner/core/apply.py says what they mean.


@dataclass(frozen=True)
class ChangeJob:
    """Set decision columns of the job."""

    fields: Mapping[str, object]


@dataclass(frozen=True)
class OpenAttempt:
    """A new generation."""

    attempt: Attempt


@dataclass(frozen=True)
class AddNode:
    """The intent to launch: counted against the limits in the commit."""

    node: Node


@dataclass(frozen=True)
class ChangeNode:
    """Set decision columns of a node; a `state` among them must be a legal transition."""

    node_id: str
    fields: Mapping[str, object]


@dataclass(frozen=True)
class MoveNode:
    """Move a machine into another attempt.

    `node` is its row there. The earlier row ends and gives up its token, so that machine, token and
    cost stay those of one machine.
    """

    node_id: str
    node: Node


Change = ChangeJob | OpenAttempt | AddNode | ChangeNode | MoveNode

JOB_DECISIONS = frozenset(
    {"generation", "outcome", "outcome_text", "finished_at_us", "failures", "place_after_us"}
    | {"save_wanted_at_us", "waiting_since_us", "waiting_told_us", "unsaved_told_us"}
    | {"room_since_us", "room_asked_us", "room_microusd_per_h", "offers_at_us"}
    | {"yields_to", "yields_since_us", "yielded_at_us", "stop_text"}
    | {"wake_at_us", "notes_seen"}
)
NODE_DECISIONS = frozenset(
    {"state", "chosen", "leave_reason", "leave_text", "left_at_us", "terminating_at_us"}
    | {"drained_at_us", "kept_until_us", "effect", "effect_armed_at_us", "effect_due_at_us"}
)


@dataclass(frozen=True)
class Plan:
    """The decision of one pass. `wake_at_us` 0 waits only for an observation.

    `reason` is the sentence in which the pass ends, `reasons` are the details for `spotctl why`.
    """

    changes: tuple[Change, ...]
    events: tuple[Event, ...]
    wake_at_us: int
    reason: str
    reasons: tuple[str, ...] = ()

    @property
    def armed(self) -> frozenset[str]:
        """The nodes for which this plan makes a call due."""
        changed = (change for change in self.changes if isinstance(change, ChangeNode))
        return frozenset(change.node_id for change in changed if "effect" in change.fields)


@dataclass(frozen=True)
class Effect:
    """One call to make, derived from a committed node."""

    kind: EffectKind
    node: Node
    job: Job
    deadline_us: int
    data: Mapping[str, object] = field(default_factory=dict)
