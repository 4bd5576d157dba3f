"""What a deployment remembers, in plain Python: immutable values in dictionaries.

Every value is frozen and shared, never changed in place and never copied; only the dictionaries
and lists around them change. What is listed under "found again" follows from the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from providers.base import Offer
from spotd.domain.events import Event
from spotd.domain.fault_drill import FaultDrill
from spotd.domain.job import Attempt, Job
from spotd.domain.market import Market, Refusal
from spotd.domain.node import EffectKind, Node
from spotd.domain.queue import Limits
from spotd.domain.view import Throughput
from spotd.security.master_key import KeyState
from spotd.store.audit import AuditRow
from spotd.store.checkpoints import CheckpointRow
from spotd.store.evaluations import EvaluationRow
from spotd.store.events import EventRow
from spotd.store.images import ImageRow
from spotd.store.jobs import Submission
from spotd.store.leases import Lease
from spotd.store.ledger import SegmentRow
from spotd.store.logins import LoginSession, UserToken
from spotd.store.outputs import StoredOutput
from spotd.store.progress import ProgressRow
from spotd.store.provider_status import ProviderStatus
from spotd.store.secrets import SecretRow
from spotd.store.storage_costs import StorageCost
from spotd.store.transfers import DataTransfer
from spotd.store.users import DisabledUser


@dataclass(frozen=True)
class Segment(SegmentRow):
    """A stretch of the ledger; what it has cost is known when it has ended."""

    id: int = 0
    cost_microusd: int = 0


@dataclass(frozen=True)
class Failures:
    """How often in a row a call for a node failed, and when it did last."""

    effect: EffectKind
    count: int
    at_us: int


@dataclass(frozen=True)
class Message:
    """One alert on its way to one route. `sent_at_us` 0 while it is not delivered."""

    id: int
    route: str
    key: str
    at_us: int
    job_id: str
    event: Event
    repeats: int
    next_at_us: int
    tries: int = 0
    sent_at_us: int = 0
    error: str = ""


@dataclass
class Tables:
    """All of it. Keys are ids of jobs or nodes where nothing else is said."""

    deployment: str
    limits: Limits = field(default_factory=Limits)
    key: KeyState = field(default_factory=lambda: KeyState(None, 0))
    kept_secrets: dict[str, tuple[SecretRow, bytes]] = field(default_factory=dict)
    user_tokens: dict[str, UserToken] = field(default_factory=dict)
    login_sessions: dict[str, LoginSession] = field(default_factory=dict)  # by digest
    disabled: dict[str, DisabledUser] = field(default_factory=dict)
    admissions: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)  # node, user
    quarantine: str = ""
    counters: dict[str, int] = field(default_factory=lambda: {"ids": 0, "clock": 0})

    jobs: dict[str, Job] = field(default_factory=dict)
    submissions: dict[str, Submission] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)  # of the last pass
    due: dict[str, int] = field(default_factory=dict)  # only jobs that are, or will be, due: when
    claims: dict[str, int] = field(default_factory=dict)  # only claimed jobs: until when
    attempts: dict[str, tuple[Attempt, ...]] = field(default_factory=dict)

    nodes: dict[str, Node] = field(default_factory=dict)
    failures: dict[str, Failures] = field(default_factory=dict)
    segments: dict[int, Segment] = field(default_factory=dict)
    carriage: dict[tuple[str, int], StorageCost] = field(default_factory=dict)
    freight: dict[tuple[str, str, str, int], DataTransfer] = field(default_factory=dict)
    log_offsets: dict[tuple[str, str], int] = field(default_factory=dict)  # by node and stream

    offers: dict[str, dict[str, Offer]] = field(default_factory=dict)  # by provider, by key
    price_history: dict[tuple[str, int], Offer] = field(default_factory=dict)  # by offer and time
    refusals: dict[tuple[str, str], Refusal] = field(default_factory=dict)  # by node and code
    providers: dict[str, ProviderStatus] = field(default_factory=dict)

    images: dict[str, ImageRow] = field(default_factory=dict)
    audit: list[AuditRow] = field(default_factory=list)
    events: list[EventRow] = field(default_factory=list)
    progress: dict[str, list[ProgressRow]] = field(default_factory=dict)
    checkpoints: dict[tuple[str, str], CheckpointRow] = field(default_factory=dict)  # job, manifest
    evaluations: dict[tuple[str, str], EvaluationRow] = field(default_factory=dict)  # job, digest
    outputs: dict[tuple[str, str], StoredOutput] = field(default_factory=dict)  # job, manifest
    drills: dict[str, FaultDrill] = field(default_factory=dict)
    outbox: dict[int, Message] = field(default_factory=dict)
    delivered: dict[int, Message] = field(default_factory=dict)
    duties: dict[str, Lease] = field(default_factory=dict)

    # --- found again
    requests: dict[str, str] = field(default_factory=dict)  # request id -> job
    unfinished: dict[str, str] = field(default_factory=dict)  # name -> job
    events_of: dict[str, list[EventRow]] = field(default_factory=dict)  # "": the deployment's own
    nodes_of: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of a job, oldest first
    tokens: dict[str, str] = field(default_factory=dict)  # token -> node
    active: dict[str, None] = field(default_factory=dict)  # nodes not gone
    ranks: dict[tuple[str, int], str] = field(default_factory=dict)  # job and rank -> chosen node
    stretches: dict[str, tuple[int, ...]] = field(default_factory=dict)  # node -> its segments
    running: dict[str, tuple[int, ...]] = field(default_factory=dict)  # job -> those not ended
    ended_microusd: dict[str, int] = field(default_factory=dict)  # what a job's ended ones cost
    reports: dict[tuple[str, int], list[Throughput]] = field(default_factory=dict)  # by generation
    waiting: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)  # route, key

    # --- kept until something changes
    shown: dict[str, tuple[Node, ...]] = field(default_factory=dict)  # as decisions see them
    chosen: dict[str, int] = field(default_factory=dict)  # newest generation that chose a machine
    on_sale: tuple[Offer, ...] | None = None
    market: Market | None = None  # without offers and use
    used: tuple[int, Mapping[tuple[str, str], int]] | None = None  # of late, and as of when

    def copy(self) -> Tables:
        """The same values in dictionaries and lists of their own."""
        values: dict[str, Any] = {f.name: _copy(getattr(self, f.name)) for f in fields(self)}
        return Tables(**values)

    def facts(self) -> dict[str, Any]:
        """What is remembered, by name, without what is only kept until something changes."""
        return {name: value for name, value in vars(self).items() if name not in _KEPT}

    def by_age(self, node_ids: Iterable[str]) -> list[Node]:
        """These nodes, oldest first."""
        found = [self.nodes[node_id] for node_id in node_ids]
        return sorted(found, key=lambda node: (node.requested_at_us, node.id))


_KEPT = frozenset({"shown", "chosen", "on_sale", "market", "used"})


def _copy(value: object) -> object:
    if isinstance(value, dict):
        return {key: list(item) if type(item) is list else item for key, item in value.items()}
    return list(value) if isinstance(value, list) else value
