"""What goes into a store and what comes out of it, beside the model itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from spotd.domain.events import Event
from spotd.domain.job import HeadSnapshot, JobSpec
from spotd.domain.view import View
from spotd.wire import JournalEntry


class AuditOutcome(str, Enum):
    """What became of a request. Each that changes something is on record twice: before it is tried,
    and when it is over."""

    ASKED = "asked"
    DONE = "done"
    REFUSED = "refused"  # not allowed, not possible, or wrong
    FAILED = "failed"  # by a fault of ours or of something that we need


@dataclass(frozen=True)
class AuditRow:
    """One line of the record of who did what. `uid` -1 is none, as of "spotd" itself; rows of one
    `request` belong together."""

    at_us: int
    uid: int
    user: str
    action: str
    target: str
    outcome: AuditOutcome
    text: str = ""
    request: str = ""
    id: int = 0


class CommitStatus(str, Enum):
    """What became of a plan."""

    DONE = "done"
    STALE = "stale"  # somebody decided first
    OVER_LIMIT = "over_limit"  # the intent to launch would break a limit; nothing was written
    REJECTED = "rejected"  # an invariant of the schema forbids it: a bug, on record as an event


@dataclass(frozen=True)
class CommitResult:
    """`view` is the job after the commit (only with DONE); `text` says what was in the way: which
    limit, or which invariant of the schema."""

    status: CommitStatus
    view: View | None = None
    text: str = ""


@dataclass(frozen=True)
class JournalBatch:
    """What one node said: entries in order, possibly some already recorded. Idempotent by `seq`."""

    node_id: str
    entries: tuple[JournalEntry, ...]
    heard_at_us: int


@dataclass(frozen=True)
class EventRow:
    """One stored event."""

    id: int
    at_us: int
    job_id: str
    event: Event


@dataclass(frozen=True)
class AlertRow:
    """One undelivered message of the outbox. `repeats` counts coalesced ones (1 = just itself)."""

    id: int
    route: str
    at_us: int
    job_id: str
    job_name: str
    event: Event
    repeats: int
    tries: int


@dataclass(frozen=True)
class RouteRow:
    """What became of the alerts of one route: when the last was delivered (0: none), how many wait
    to be, the oldest of those since when (0: none waits), and what the last try said that failed
    among them ("": none did)."""

    route: str
    delivered_at_us: int
    waiting: int
    since_us: int
    error: str


@dataclass(frozen=True)
class SegmentRow:
    """One stretch of one node at one price. `end_us` 0 while it runs.

    `state` is "unknown" (launch in flight: counted from its intent at its worst case), "open",
    "closed", or "void" (no instance came of it: costs nothing). `invoiced_microusd` is what an
    invoice had for it, since `reconciled_at_us` (0: none had).
    """

    node_id: str
    job_id: str
    kind: str
    start_us: int
    end_us: int
    rate_microusd_per_h: int
    list_rate_microusd_per_h: int
    best_on_demand_microusd_per_h: int
    price_source: str
    state: str
    id: int = 0
    reconciled_at_us: int = 0
    invoiced_microusd: int = 0


@dataclass(frozen=True)
class CheckpointRow:
    """One committed checkpoint as reported by its node."""

    job_id: str
    generation: int
    step: int
    manifest: str
    bytes: int
    trigger: str
    released: bool
    final: bool
    committed_at_us: int
    stage_s: float
    write_s: float
    near_bytes: int = 0  # of `bytes`, what is in stores of its machines' own regions
    removed_at_us: int = 0  # by a person; 0: it was not


@dataclass(frozen=True)
class ProgressRow:
    """One reported stretch of steps; `losses` has one float a step from `from_step` (or thinned).

    `first_at_us` and `last_at_us` are the node's clock, `at_us` is ours when it was reported.
    `id` grows with every row of the store: where to go on reading.
    """

    generation: int
    from_step: int
    to_step: int
    losses: tuple[float, ...]
    first_at_us: int
    last_at_us: int
    tokens: int
    busy_s: float
    id: int = 0
    at_us: int = 0


@dataclass(frozen=True)
class SecretRow:
    """A secret that the deployment keeps, without its value."""

    name: str
    set_at_us: int
    set_by: str


@dataclass(frozen=True)
class DisabledUser:
    """One who is shut out. `uid` -1 is not known; `successor` got the jobs."""

    name: str
    uid: int
    disabled_at_us: int
    disabled_by: str
    successor: str = ""


@dataclass(frozen=True)
class Submission:
    """A job to be stored with everything that later effects need, in one transaction.

    `secrets` and `job_key` are ciphertexts already, sealed with the master key of `key_epoch`.
    `request_id` makes a repeat return the first. `head` is HEAD as it is by now, of a job that goes
    on from the checkpoints of its id.
    """

    job_id: str
    spec: JobSpec
    spec_yaml: str
    user: str
    request_id: str
    job_key: bytes
    secrets: Mapping[str, bytes] = field(default_factory=dict)
    key_epoch: int = 0
    head: HeadSnapshot | None = None
