"""SqlStore: the store on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spotd.domain.plan import Plan
from spotd.domain.view import View
from spotd.store import leases, views
from spotd.store.alerts import AlertRepository
from spotd.store.audit import AuditRepository
from spotd.store.checkpoints import CheckpointRepository
from spotd.store.commit import CommitResult, CommitStatus, LostRaceError, commit_many
from spotd.store.commit_effects import rejection
from spotd.store.deployment import DeploymentRepository
from spotd.store.drills import DrillRepository
from spotd.store.engine import BrokenRuleError, Database
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
from spotd.store.market import MarketRepository, Markets
from spotd.store.metrics import MetricRepository
from spotd.store.node_history import NodeHistoryRepository
from spotd.store.nodes import NodeRepository
from spotd.store.orphans import OrphanRepository
from spotd.store.outputs import OutputRepository
from spotd.store.progress import ProgressRepository
from spotd.store.secrets import SecretRepository
from spotd.store.session import Session
from spotd.store.storage_costs import StorageCostRepository
from spotd.store.transfers import TransferRepository
from spotd.store.users import UserRepository
from spotd.store.version import prepare


def open_store(
    url: str,
    *,
    now: Callable[[], int],
    notify: Callable[[], None],
    deployment_factory: Callable[[], str],
) -> SqlStore:
    """Open the store at `url`; an empty database gets its tables and its deployment id.

    `notify` is called after every transaction that made a job due, on the caller's thread.
    Raises StoreError, StoreUnavailableError or SchemaVersionError; each message has the fix.
    """
    database = Database(url)
    try:
        deployment = prepare(database, deployment_factory, now)
    except BaseException:
        database.close()
        raise
    return SqlStore(database, deployment, notify)


class SqlStore:
    """A `spotd.store.interface.Store`; made by `open_store`. Safe to share between threads."""

    def __init__(
        self,
        database: Database,
        deployment: str,
        notify: Callable[[], None],
        markets: Markets | None = None,
        fence: leases.LeaseFence | None = None,
    ) -> None:
        self._markets = markets or Markets()
        session = Session(database, notify, fence=None if fence is None else fence.hold)
        self.session = session
        self.deployment = DeploymentRepository(session, deployment)
        self.leases = LeaseRepository(session, fence)
        self.market = MarketRepository(session, self._markets)
        self.alerts = AlertRepository(session)
        self.audit = AuditRepository(session)
        self.checkpoints = CheckpointRepository(session)
        self.drills = DrillRepository(session)
        self.evaluations = EvaluationRepository(session)
        self.events = EventRepository(session)
        self.images = ImageRepository(session)
        self.instances = InstanceRepository(session)
        self.jobs = JobRepository(session)
        self.journal = JournalRepository(session)
        self.ledger = LedgerRepository(session)
        self.logins = LoginRepository(session)
        self.logs = LogRepository(session)
        self.metrics = MetricRepository(session)
        self.node_history = NodeHistoryRepository(session)
        self.nodes = NodeRepository(session)
        self.orphans = OrphanRepository(session)
        self.outputs = OutputRepository(session)
        self.progress = ProgressRepository(session)
        self.secrets = SecretRepository(session)
        self.storage_costs = StorageCostRepository(session)
        self.transfers = TransferRepository(session)
        self.users = UserRepository(session)

    def load_view(self, job_id: str, now_us: int) -> View | None:
        return self.load_views([job_id], now_us).get(job_id)

    def load_views(self, job_ids: Sequence[str], now_us: int) -> dict[str, View]:
        return self.session.database.read(lambda conn: views.load_views(conn, job_ids, now_us))

    def commit(self, view: View, plan: Plan, now_us: int) -> CommitResult:
        return self.commit_many([(view, plan)], now_us)[0]

    def commit_many(self, plans: Sequence[tuple[View, Plan]], now_us: int) -> list[CommitResult]:
        try:
            return self.session.write(
                lambda tx: commit_many(tx, plans, self._markets, now_us), urgent=True
            )
        except (BrokenRuleError, LostRaceError, ValueError) as error:
            # One bad plan must not stop the others: write each by itself.
            if len(plans) > 1:
                return [self.commit(view, plan, now_us) for view, plan in plans]
            if isinstance(error, ValueError):
                raise
            return [self._reject(plans[0][0], str(error), now_us)]

    def _reject(self, view: View, message: str, now_us: int) -> CommitResult:
        """Record the rejection; the claim stays, so that the plan is not retried at once."""
        event = rejection(view.job.id, message)
        self.session.write(lambda tx: tx.event(view.job.id, event, now_us))
        return CommitResult(CommitStatus.REJECTED, text=event.text)

    def fenced(self, duty: str, epoch: int) -> SqlStore:
        return SqlStore(
            self.session.database,
            self.deployment.id(),
            self.session.notify,
            self._markets,
            leases.LeaseFence(duty, epoch),
        )

    def close(self) -> None:
        self.session.database.close()


def _check_protocol(store: SqlStore) -> None:
    """For the type checker alone: SqlStore is a Store."""
    from spotd.store.interface import Store  # noqa: PLC0415

    _: Store = store
