"""The store as the rest of the daemon sees it: one Protocol, kept on SQLite and PostgreSQL.

Two kinds of writes and no third: `commit` writes decisions (and is a compare-and-swap on the job's
version), `record_*` writes observations (and only says that a job is due). Every method is one
transaction; none calls out. All times are microseconds given by the caller, who owns the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from providers.base import Instance, Notice, Scope
from spotd.domain.events import Event
from spotd.domain.health import HealthSpec
from spotd.domain.job import Desired, HeadSnapshot, Job
from spotd.domain.market import Market
from spotd.domain.node import EffectKind, Node
from spotd.domain.plan import Plan
from spotd.domain.queue import Limits
from spotd.domain.states import NodeState
from spotd.domain.view import Throughput, View
from spotd.planner.core.checkpoint_interval import ObservedLifetimes
from spotd.security.master_key import KeyState, SealedValue
from spotd.store.access import AccessRecords
from spotd.store.drill_records import DrillRecords
from spotd.store.image_records import ImageRecords
from spotd.store.invoice_records import InvoiceRecords
from spotd.store.orphan_records import OrphanRecords
from spotd.store.price_records import MarketRecords, PricePoint
from spotd.store.records import (
    AlertRow,
    AuditOutcome,
    AuditRow,
    CheckpointRow,
    CommitResult,
    CommitStatus,
    DisabledUser,
    EventRow,
    JournalBatch,
    ProgressRow,
    RouteRow,
    SecretRow,
    SegmentRow,
    Submission,
)

__all__ = [
    "AlertRow",
    "AuditOutcome",
    "AuditRow",
    "CheckpointRow",
    "CommitResult",
    "CommitStatus",
    "DisabledUser",
    "DisabledUserError",
    "DuplicateIdError",
    "DuplicateNameError",
    "EventRow",
    "JournalBatch",
    "KeyState",
    "LostLeaseError",
    "NoSuccessorError",
    "PricePoint",
    "ProgressRow",
    "RouteRow",
    "SchemaVersionError",
    "SealedValue",
    "SecretRow",
    "SegmentRow",
    "StaleKeyError",
    "Store",
    "StoreError",
    "StoreUnavailableError",
    "Submission",
]


class StoreError(Exception):
    """Base of what a store raises on purpose."""


class StoreUnavailableError(StoreError):
    """The database cannot be written or reached now; try again, create nothing meanwhile."""


class SchemaVersionError(StoreError):
    """The database's schema is not this program's; the text says what to do."""


class StaleKeyError(StoreError):
    """What was to be stored is sealed with a master key that another has taken over from."""


class LostLeaseError(StoreError):
    """A duty's lease is another daemon's now, or about to be: nothing was written."""


class NoSuccessorError(StoreError):
    """Who is to be shut out has unfinished jobs, and nobody was named who gets them."""


class DisabledUserError(StoreError):
    """Who submits was disabled."""


class DuplicateNameError(StoreError):
    """A job of that name is not finished yet; `job_id` names it."""

    def __init__(self, text: str, job_id: str) -> None:
        super().__init__(text)
        self.job_id = job_id


class DuplicateIdError(StoreError):
    """A job of that id is on record."""


class Store(
    OrphanRecords,
    ImageRecords,
    InvoiceRecords,
    AccessRecords,
    MarketRecords,
    DrillRecords,
    Protocol,
):
    """See the module. `SqlStore` (store/sql_store.py) keeps it on SQLite and PostgreSQL."""

    # --- the loop
    def claim(self, now_us: int, owner: str, limit: int, lease_us: int) -> list[str]:
        """Take up to `limit` due jobs (notes > notes_seen, or 0 < wake_at_us <= now) that nobody
        holds a lease on, oldest due first. A lease ends with the commit, or after `lease_us`."""
        ...

    def load_view(self, job_id: str, now_us: int) -> View | None:
        """Everything a decision may look at; None when there is no such job."""
        ...

    def load_market(self, now_us: int) -> Market:
        """Offers, recent refusals, limits and committed use.

        Refusals are the recorded ones of the last 6 h, and those that follow from nodes: one that
        left as preempted, lost or boot_timeout refuses its offer with the code "Preempted", "Lost"
        or "BootTimeout" and the scope OFFER, at `left_at_us`, and when it is gone, at `gone_at_us`.
        """
        ...

    def commit(self, view: View, plan: Plan, now_us: int) -> CommitResult:
        """Write `plan` if the job still has `view.job.version`, and release the claim.

        In one transaction: changes, events, alerts (outbox), ledger (a segment "unknown" per added
        node), `notes_seen = view.job.notes`, `wake_at_us`, `version + 1`. With an AddNode the
        limits are checked over all nodes not gone, under a lock, before anything is written. The
        event "pass" with `plan.reason` is written only when the reason differs from the last one.
        """
        ...

    def load_views(self, job_ids: Sequence[str], now_us: int) -> dict[str, View]:
        """`load_view` of many jobs in one snapshot; a job that does not exist is left out."""
        ...

    def commit_many(self, plans: Sequence[tuple[View, Plan]], now_us: int) -> list[CommitResult]:
        """`commit` of several jobs in one transaction, each accepted or not by itself."""
        ...

    def next_wake_us(self) -> int | None:
        """The earliest moment at which some job becomes due; None when none is waiting."""
        ...

    # --- observations; each that concerns a job adds one to its `notes`
    def record_launched(self, node_id: str, instance_id: str, at_us: int) -> None: ...

    def record_launch_refused(
        self, node_id: str, code: str, text: str, scope: Scope, at_us: int
    ) -> None: ...

    def record_absent(self, node_id: str, at_us: int) -> None:
        """A launch whose outcome was unknown came to nothing: no instance has its token."""
        ...

    def record_listing(
        self,
        provider: str,
        instances: Sequence[Instance],
        asked_at_us: int,
        at_us: int,
        visibility_s: float = 0.0,
    ) -> list[Instance]:
        """A complete listing, asked for at `asked_at_us` (nodes launched later, or less than the
        provider's `visibility_s` before, are not judged by it; nor is a machine that is missing
        while its link is up, unless we ended it). Updates every node of the provider; returns the
        instances that no node wants (orphans: unknown token, or of a node that is gone)."""
        ...

    def record_effect_failed(
        self, node_id: str, effect: EffectKind, text: str, at_us: int, pause_s: float = 0.0
    ) -> None:
        """The call is known to have failed, and was asked not to be repeated for `pause_s`."""
        ...

    def record_booted(self, node_id: str, at_us: int) -> None: ...

    def record_told(self, node_id: str, effect: EffectKind, at_us: int, claim: str = "") -> None:
        """A command or a terminate was acknowledged: START (with its claim), RELEASE, DRAIN, SAVE,
        TERMINATE."""
        ...

    def record_lent(self, node_id: str, at_us: int, until_us: int) -> None:
        """The machine was lent credentials of its job's store that are good until then; never
        back, so that a caller who was asleep takes nothing from a later one."""
        ...

    def record_head(self, job_id: str, head: HeadSnapshot) -> None: ...

    def record_journal(self, batches: Sequence[JournalBatch]) -> None:
        """Entries become rows and node columns, once each; also moves `heard_at_us`."""
        ...

    def record_heard(self, heard: Mapping[str, int]) -> None:
        """node id -> last heard, by heartbeats alone. Makes a job due only when a link was down."""
        ...

    def record_link(self, node_id: str, down_at_us: int) -> None:
        """The SSH link to a node ended (0: is up again)."""
        ...

    def note_jobs(self, job_ids: Sequence[str]) -> None:
        """Make jobs due: something that only a decision can judge has changed with time."""
        ...

    def note_silent(self, before_us: int) -> None:
        """Make the jobs due whose booted nodes (not exited, not terminating or gone) were neither
        heard nor booted since `before_us`."""
        ...

    def recent_throughput(
        self, now_us: int
    ) -> dict[str, tuple[HealthSpec, tuple[Throughput, ...]]]:
        """Jobs with a running node -> their health spec and what the newest attempt reported (as in
        View.throughput). Those whose newest window is plainly healthy are left out."""
        ...

    def record_cloud_notices(self, provider: str, notices: Sequence[Notice], at_us: int) -> None:
        """Cloud-side notices, by instance id; one row with the node's own notice of that id."""
        ...

    # --- users
    def submit(self, submission: Submission, at_us: int) -> Job:
        """Raises DuplicateIdError, DuplicateNameError, ShutOutError, StaleKeyError. The same
        `request_id` again returns the first job."""
        ...

    def set_desired(self, job_id: str, desired: Desired, actor: str, at_us: int) -> Job: ...

    # --- what the outside may read
    def jobs(self, finished: bool = True) -> list[Job]: ...

    def newest_jobs(self, limit: int, finished: bool = True) -> tuple[list[Job], int]:
        """At most `limit` of them, the newest first, and how many there are. The others cost
        nothing but the count."""
        ...

    def find_job(self, name_or_id: str) -> Job | None:
        """By id, else the newest by that name."""
        ...

    def job_of_request(self, request_id: str) -> Job | None: ...

    def job_names(self, job_ids: Collection[str]) -> dict[str, str]:
        """Id -> name, of those that exist; costs nothing for all the other jobs on record."""
        ...

    def job_nodes(self, job_id: str) -> list[Node]:
        """All nodes a job ever had, oldest first."""
        ...

    def active_nodes(self) -> list[Node]:
        """Nodes not gone, of all jobs."""
        ...

    def booted_nodes(self) -> dict[str, NodeState]:
        """Id -> state of every node not gone whose agent was started, and whose disk is not being
        cleaned for an image: a look at the whole fleet that costs a tenth of `active_nodes`."""
        ...

    def find_nodes(self, node_ids: Sequence[str]) -> list[Node]:
        """Those of these nodes that exist, oldest first."""
        ...

    def events(self, job_id: str | None, after_id: int = 0, limit: int = 500) -> list[EventRow]: ...

    def last_event(self, job_id: str, kind: str) -> EventRow | None:
        """The newest of its kind; None when there is none."""
        ...

    def events_of(self, job_id: str, kinds: Sequence[str], since_us: int = 0) -> list[EventRow]:
        """Those of these kinds, oldest first."""
        ...

    def image_digest(self, job_id: str) -> str:
        """Of the container image that the job began with: what a node first said it found. "" when
        none has."""
        ...

    def lives(self, since_us: int) -> list[ObservedLifetimes]:
        """The time that machines have run since, by offer, and how many were taken away or lost."""
        ...

    def segments(self, job_id: str | None = None) -> list[SegmentRow]: ...

    def checkpoints(self, job_id: str) -> list[CheckpointRow]: ...

    def progress(self, job_id: str, after: int = 0) -> list[ProgressRow]:
        """Rows whose `id` is greater than `after`, in the order in which they were recorded."""
        ...

    def spec_yaml(self, job_id: str) -> str: ...

    def job_key(self, job_id: str) -> bytes: ...

    def secrets(self, job_id: str) -> dict[str, bytes]: ...

    def log_offsets(self, job_id: str) -> dict[tuple[int, int, str], int]:
        """(generation, rank, stream) -> bytes already in the deployment's store."""
        ...

    def record_log_offset(self, node_id: str, stream: str, offset: int) -> None: ...

    # --- shared duties: a lease with an epoch that every write of the duty is held against
    def take_duty(self, duty: str, holder: str, now: Callable[[], int], ttl_us: int) -> int | None:
        """The epoch, if the duty is free, ours, or its lease has run out; else None. Taken for no
        time it is let go. A takeover waits for writes that are under way; the clock is read after
        that, when nobody else can change the lease: who was frozen before does not cut another's
        lease by a time that is long over."""
        ...

    def take_duties(
        self, duties: Collection[str], holder: str, now: Callable[[], int], ttl_us: int
    ) -> dict[str, int | None]:
        """The same for many, in one transaction that waits for no write. Those that are missing
        from the answer were never taken, or are locked now: ask for each by itself."""
        ...

    def fenced(self, duty: str, epoch: int) -> Store:
        """This store for the holder of a duty: every write raises LostDutyError, and writes
        nothing, when the duty's epoch is another one."""
        ...

    def hold_duty(self, now_us: int) -> None:
        """Of a fenced store: raises LostDutyError unless the lease is that of its epoch, and for
        some seconds more. To be asked right before what no transaction can take back."""
        ...

    def newest_us(self) -> int:
        """The latest time that a daemon here is known to have had; 0 in a new database."""
        ...

    def due_alerts(self, now_us: int, limit: int) -> list[AlertRow]: ...

    def route_rows(self) -> list[RouteRow]:
        """What became of the alerts of each route that ever had one."""
        ...

    def mark_alerts(
        self, rows: Sequence[AlertRow], sent_at_us: int, next_at_us: int, error: str
    ) -> None:
        """Delivered as `rows` say (`sent_at_us` > 0; what was repeated since stays to be told), or
        to be tried again at `next_at_us`."""
        ...

    def add_event(self, job_id: str, event: Event, at_us: int) -> None:
        """An event that no decision made (an API action, a duty)."""
        ...

    def prune(self, before_us: int) -> int:
        """Delete events, progress and delivered alerts of before; returns the number of rows. The
        audit stays."""
        ...

    # --- the deployment
    def deployment(self) -> str:
        """The id this database was created with; part of every token and tag."""
        ...

    def quarantine(self) -> str:
        """Why no machine is ended for being unknown to this database; "" when it may be."""
        ...

    def set_quarantine(self, reason: str, at_us: int) -> None:
        """Begin the quarantine (alerts), or end it (""). While it lasts its first reason stays."""
        ...

    def set_limits(self, limits: Limits) -> None: ...
    def close(self) -> None: ...
