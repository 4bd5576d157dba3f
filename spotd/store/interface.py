"""The store as the rest of the daemon sees it: one repository per noun, on SQLite or PostgreSQL.

There are two kinds of writes and no third: `commit` writes decisions, and is a compare-and-swap on
the job's version; the repositories' `record…` methods write observations, and only make a job due.
Each method is one transaction and makes no other calls. All times are microseconds given by the
caller, who owns the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from spotd.domain.plan import Plan
from spotd.domain.view import View
from spotd.store.alerts import AlertRepository
from spotd.store.audit import AuditRepository
from spotd.store.checkpoints import CheckpointRepository
from spotd.store.commit import CommitResult
from spotd.store.deployment import DeploymentRepository
from spotd.store.drills import DrillRepository
from spotd.store.evaluations import EvaluationRepository
from spotd.store.events import EventRepository
from spotd.store.images import ImageRepository
from spotd.store.instances import InstanceRepository
from spotd.store.jobs import JobRepository
from spotd.store.journal import JournalRepository
from spotd.store.leases import LeaseRepository
from spotd.store.ledger import LedgerRepository
from spotd.store.logins import LoginRepository
from spotd.store.logs import LogRepository
from spotd.store.market import MarketRepository
from spotd.store.metrics import MetricRepository
from spotd.store.node_history import NodeHistoryRepository
from spotd.store.nodes import NodeRepository
from spotd.store.orphans import OrphanRepository
from spotd.store.outputs import OutputRepository
from spotd.store.progress import ProgressRepository
from spotd.store.secrets import SecretRepository
from spotd.store.storage_costs import StorageCostRepository
from spotd.store.transfers import TransferRepository
from spotd.store.users import UserRepository


class Store(Protocol):
    """The interface of `spotd.store.sql_store.SqlStore`."""

    alerts: AlertRepository
    audit: AuditRepository
    checkpoints: CheckpointRepository
    deployment: DeploymentRepository
    drills: DrillRepository
    evaluations: EvaluationRepository
    events: EventRepository
    images: ImageRepository
    instances: InstanceRepository
    jobs: JobRepository
    journal: JournalRepository
    leases: LeaseRepository
    ledger: LedgerRepository
    logins: LoginRepository
    logs: LogRepository
    market: MarketRepository
    metrics: MetricRepository
    node_history: NodeHistoryRepository
    nodes: NodeRepository
    orphans: OrphanRepository
    outputs: OutputRepository
    progress: ProgressRepository
    secrets: SecretRepository
    storage_costs: StorageCostRepository
    transfers: TransferRepository
    users: UserRepository

    def load_view(self, job_id: str, now_us: int) -> View | None:
        """Everything a decision may depend on; None if there is no such job."""
        ...

    def load_views(self, job_ids: Sequence[str], now_us: int) -> dict[str, View]:
        """`load_view` of several jobs in one snapshot; unknown jobs are left out."""
        ...

    def commit(self, view: View, plan: Plan, now_us: int) -> CommitResult:
        """Write `plan` if the job still has `view.job.version`, and release the claim.

        In one transaction: changes, events, alerts (outbox), ledger (a segment "unknown" per added
        node), `notes_seen = view.job.wakeup.notes`, `wake_at_us`, `version + 1`. With an AddNode
        the limits are checked over all nodes not gone, under a lock, before anything is written.
        The event "pass" with `plan.reason` is written only when the reason differs from the last.
        """
        ...

    def commit_many(self, plans: Sequence[tuple[View, Plan]], now_us: int) -> list[CommitResult]:
        """`commit` of several jobs in one transaction, each accepted or not by itself."""
        ...

    def fenced(self, duty: str, epoch: int) -> Store:
        """This store for the holder of a duty: every write raises LostLeaseError, writing nothing,
        once the duty has another epoch."""
        ...

    def close(self) -> None:
        """Close every connection."""
        ...
