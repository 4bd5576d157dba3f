"""MemoryStore: the store in plain Python, for simulations that make a thousand passes a second.

It keeps the contract of `spotd.store.interface` to the letter: `SqlStore` and it share the rules,
and the same tests run on both. One thread, no clock, no randomness; nothing survives the process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spotd.domain.node import Node
from spotd.domain.plan import Plan
from spotd.domain.view import View
from spotd.store.commit import CommitResult, CommitStatus
from spotd.store.commit_effects import rejection
from spotd.store.engine import BrokenRuleError
from spotd.store.interface import Store
from spotd.store.leases import LeaseFence
from tests.sim.memory import commit, views
from tests.sim.memory.repositories import (
    MemoryAlerts,
    MemoryAudit,
    MemoryCheckpoints,
    MemoryDeployment,
    MemoryDrills,
    MemoryEvaluations,
    MemoryEvents,
    MemoryImages,
    MemoryInstances,
    MemoryJobs,
    MemoryJournal,
    MemoryLeases,
    MemoryLedger,
    MemoryLogins,
    MemoryLogs,
    MemoryMarket,
    MemoryNodeHistory,
    MemoryNodes,
    MemoryOrphans,
    MemoryOutputs,
    MemoryProgress,
    MemorySecrets,
    MemoryStorageCosts,
    MemoryTransfers,
    MemoryUsers,
)
from tests.sim.memory.session import Database, MemorySession
from tests.sim.memory.tables import Tables
from tests.sim.memory.transaction import Transaction


class MemoryStore:
    """See `spotd.store.interface.Store`. `notify` is called after every transaction that made a job
    due.

    While `away` is true every method but `close` raises StoreUnavailableError.
    """

    def __init__(self, deployment: str, notify: Callable[[], None]) -> None:
        self._open(MemorySession(Database(Tables(deployment)), notify))

    def _open(self, session: MemorySession) -> None:
        self._session = session
        self.alerts = MemoryAlerts(session)
        self.audit = MemoryAudit(session)
        self.checkpoints = MemoryCheckpoints(session)
        self.deployment = MemoryDeployment(session)
        self.drills = MemoryDrills(session)
        self.evaluations = MemoryEvaluations(session)
        self.outputs = MemoryOutputs(session)
        self.events = MemoryEvents(session)
        self.images = MemoryImages(session)
        self.instances = MemoryInstances(session)
        self.jobs = MemoryJobs(session)
        self.journal = MemoryJournal(session)
        self.leases = MemoryLeases(session)
        self.ledger = MemoryLedger(session)
        self.logins = MemoryLogins(session)
        self.logs = MemoryLogs(session)
        self.market = MemoryMarket(session)
        self.node_history = MemoryNodeHistory(session)
        self.nodes = MemoryNodes(session)
        self.orphans = MemoryOrphans(session)
        self.progress = MemoryProgress(session)
        self.secrets = MemorySecrets(session)
        self.storage_costs = MemoryStorageCosts(session)
        self.transfers = MemoryTransfers(session)
        self.users = MemoryUsers(session)

    @property
    def away(self) -> bool:
        return self._session.database.away

    @away.setter
    def away(self, away: bool) -> None:
        self._session.database.away = away

    def snapshot(self) -> Tables:
        """Everything as it is now, for `restore`. What is in it is not to be changed."""
        return self._session.database.tables.copy()

    def restore(self, snapshot: Tables) -> None:
        """Everything is as it was then, however often."""
        self._session.database.tables = snapshot.copy()

    def due(self, now_us: int) -> dict[str, int]:
        """The jobs that are due, claimed or not, and since when: for who judges."""
        due = self._session.database.tables.due
        return {job_id: at_us for job_id, at_us in due.items() if at_us <= now_us}

    def node_of(self, token: str) -> Node | None:
        """The node of that token: for who judges."""
        tables = self._session.database.tables
        node_id = tables.tokens.get(token)
        return None if node_id is None else tables.nodes[node_id]

    def load_view(self, job_id: str, now_us: int) -> View | None:
        return self.load_views([job_id], now_us).get(job_id)

    def load_views(self, job_ids: Sequence[str], now_us: int) -> dict[str, View]:
        return views.load_views(self._session.here(), job_ids, now_us)

    def commit(self, view: View, plan: Plan, now_us: int) -> CommitResult:
        return self.commit_many([(view, plan)], now_us)[0]

    def commit_many(self, plans: Sequence[tuple[View, Plan]], now_us: int) -> list[CommitResult]:
        try:
            return self._session.write(commit.commit_many, plans, now_us)
        except (BrokenRuleError, ValueError) as error:
            # One bad plan must not stop the others: each by itself then.
            if len(plans) > 1:
                return [self.commit(view, plan, now_us) for view, plan in plans]
            if isinstance(error, ValueError):
                raise
            return [self._reject(plans[0][0], str(error), now_us)]

    def _reject(self, view: View, text: str, now_us: int) -> CommitResult:
        """Keep the claim, so that the plan is not tried again at once, and record why."""
        event = rejection(view.job.id, text)
        self._session.write(Transaction.event, view.job.id, event, now_us)
        return CommitResult(CommitStatus.REJECTED, text=event.text)

    def fenced(self, duty: str, epoch: int) -> MemoryStore:
        whole = self._session
        fenced = MemoryStore.__new__(MemoryStore)
        fenced._open(MemorySession(whole.database, whole.notify, LeaseFence(duty, epoch)))
        return fenced

    def close(self) -> None:
        """There is nothing to close."""


def _keeps_the_contract(store: MemoryStore) -> None:
    """For readers: MemoryStore is a Store."""
    _: Store = store
