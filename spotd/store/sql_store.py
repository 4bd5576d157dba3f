"""SqlStore: the store on SQLite and PostgreSQL, put together from one module a noun."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from sqlalchemy import Connection

from providers.base import Instance, Notice, Scope
from spotd.domain.events import Event
from spotd.domain.job import Desired, HeadSnapshot, Job
from spotd.domain.market import Market
from spotd.domain.node import EffectKind, Node
from spotd.domain.plan import Plan
from spotd.domain.queue import Limits
from spotd.domain.states import NodeState
from spotd.domain.view import View
from spotd.store import (
    alerts,
    deployment_claim,
    event_log,
    instance_listing,
    jobs,
    journal,
    leases,
    ledger,
    market,
    nodes,
    orphans,
    quarantine,
    throughput,
    views,
)
from spotd.store.commit import LostRaceError, commit_many
from spotd.store.commit_effects import rejection
from spotd.store.engine import BrokenRuleError, Database
from spotd.store.interface import (
    AlertRow,
    CheckpointRow,
    CommitResult,
    CommitStatus,
    EventRow,
    JournalBatch,
    ProgressRow,
    SegmentRow,
    Submission,
)
from spotd.store.orphan_records import NodeRowTimes, OwnedResource
from spotd.store.sql_drills import SqlDrills
from spotd.store.transaction import Transaction
from spotd.store.version import prepare, upgrade

__all__ = ["SqlStore", "open_store", "upgrade"]

T = TypeVar("T")


def open_store(
    url: str,
    *,
    now: Callable[[], int],
    notify: Callable[[], None],
    deployment_factory: Callable[[], str],
) -> SqlStore:
    """The store at `url`; an empty database is given its tables and its deployment id.

    `notify` is called after every transaction that made a job due, on the caller's thread.
    Raises StoreError, StoreUnavailableError or SchemaVersionError, each saying what to do.
    """
    database = Database(url)
    try:
        deployment = prepare(database, deployment_factory, now)
    except BaseException:
        database.close()
        raise
    return SqlStore(database, deployment, notify)


class SqlStore(SqlDrills):
    """See `spotd.store.interface.Store`; made by `open_store`. Safe to share between threads."""

    def __init__(
        self,
        database: Database,
        deployment: str,
        notify: Callable[[], None],
        markets: market.Markets | None = None,
        fence: leases.LeaseFence | None = None,
    ) -> None:
        self._database = database
        self._deployment = deployment
        self._notify = notify
        self._markets = markets or market.Markets()
        self._fence = fence

    def _write(self, work: Callable[[Transaction], T], *, ahead: bool = False) -> T:
        due = False

        def run(conn: object) -> T:
            nonlocal due
            tx = Transaction(conn)  # type: ignore[arg-type]
            if self._fence is not None:
                leases.hold(tx.conn, self._fence)
            result = work(tx)
            tx.flush()
            due = tx.due
            return result

        result = self._database.write(run, ahead=ahead)
        if due:
            self._notify()
        return result

    # --- the loop

    def claim(self, now_us: int, owner: str, limit: int, lease_us: int) -> list[str]:
        def work(conn: Connection) -> list[str]:
            return jobs.claim(conn, now_us, owner, limit, lease_us)

        return self._database.write(work, ahead=True)

    def next_wake_us(self) -> int | None:
        return self._database.glance(jobs.next_wake_us)

    def load_view(self, job_id: str, now_us: int) -> View | None:
        return self.load_views([job_id], now_us).get(job_id)

    def load_views(self, job_ids: Sequence[str], now_us: int) -> dict[str, View]:
        return self._database.read(lambda c: views.load_views(c, job_ids, now_us))

    def load_market(self, now_us: int) -> Market:
        return self._database.read(lambda c: self._markets.load(c, now_us))

    def commit(self, view: View, plan: Plan, now_us: int) -> CommitResult:
        return self.commit_many([(view, plan)], now_us)[0]

    def commit_many(self, plans: Sequence[tuple[View, Plan]], now_us: int) -> list[CommitResult]:
        try:
            markets = self._markets
            return self._write(lambda tx: commit_many(tx, plans, markets, now_us), ahead=True)
        except (BrokenRuleError, LostRaceError, ValueError) as error:
            # One bad plan must not stop the others: each by itself then.
            if len(plans) > 1:
                return [self.commit(view, plan, now_us) for view, plan in plans]
            if isinstance(error, ValueError):
                raise
            return [self._reject(plans[0][0], str(error), now_us)]

    def _reject(self, view: View, text: str, now_us: int) -> CommitResult:
        """Keep the claim, so that the plan is not tried again at once, and tell."""
        event = rejection(view.job.id, text)
        self._write(lambda tx: tx.event(view.job.id, event, now_us))
        return CommitResult(CommitStatus.REJECTED, text=event.text)

    # --- observations

    def record_launched(self, node_id: str, instance_id: str, at_us: int) -> None:
        self._write(lambda tx: nodes.record_launched(tx, node_id, instance_id, at_us))

    def record_launch_refused(
        self, node_id: str, code: str, text: str, scope: Scope, at_us: int
    ) -> None:
        self._write(lambda tx: nodes.record_launch_refused(tx, node_id, code, text, scope, at_us))

    def record_absent(self, node_id: str, at_us: int) -> None:
        self._write(lambda tx: nodes.record_absent(tx, node_id, at_us))

    def record_listing(
        self,
        provider: str,
        instances: Sequence[Instance],
        asked_at_us: int,
        at_us: int,
        visibility_s: float = 0.0,
    ) -> list[Instance]:
        found = instance_listing.Listing(provider, instances, asked_at_us, at_us, visibility_s)
        return self._write(lambda tx: instance_listing.record_listing(tx, found))

    def record_effect_failed(
        self, node_id: str, effect: EffectKind, text: str, at_us: int, pause_s: float = 0.0
    ) -> None:
        self._write(
            lambda tx: nodes.record_effect_failed(tx, node_id, effect, text, at_us, pause_s)
        )

    def record_booted(self, node_id: str, at_us: int) -> None:
        self._write(lambda tx: nodes.record_booted(tx, node_id, at_us))

    def record_told(self, node_id: str, effect: EffectKind, at_us: int, claim: str = "") -> None:
        self._write(lambda tx: nodes.record_told(tx, node_id, effect, at_us, claim))

    def record_lent(self, node_id: str, at_us: int, until_us: int) -> None:
        self._write(lambda tx: nodes.record_lent(tx, node_id, at_us, until_us))

    def record_head(self, job_id: str, head: HeadSnapshot) -> None:
        self._write(lambda tx: jobs.record_head(tx, job_id, head))

    def record_journal(self, batches: Sequence[JournalBatch]) -> None:
        self._write(lambda tx: journal.record_journal(tx, batches), ahead=True)

    def record_heard(self, heard: Mapping[str, int]) -> None:
        self._write(lambda tx: nodes.record_heard(tx, dict(heard)), ahead=True)

    def record_link(self, node_id: str, down_at_us: int) -> None:
        self._write(lambda tx: nodes.record_link(tx, node_id, down_at_us), ahead=True)

    def record_cloud_notices(self, provider: str, notices: Sequence[Notice], at_us: int) -> None:
        self._write(lambda tx: instance_listing.record_cloud_notices(tx, provider, notices, at_us))

    def note_jobs(self, job_ids: Sequence[str]) -> None:
        self._write(lambda tx: tx.touch(dict.fromkeys(job_ids, 0)))

    def note_silent(self, before_us: int) -> None:
        self._write(lambda tx: nodes.note_silent(tx, before_us))

    def recent_throughput(self, now_us: int) -> throughput.Recent:
        return self._database.read(lambda c: throughput.recent_throughput(c, now_us))

    # --- users

    def submit(self, submission: Submission, at_us: int) -> Job:
        try:
            return self._write(lambda tx: jobs.submit(tx, submission, at_us))
        except BrokenRuleError:
            # Somebody submitted the same name or request at the same moment: now it can be seen.
            return self._write(lambda tx: jobs.submit(tx, submission, at_us))

    def set_desired(self, job_id: str, desired: Desired, actor: str, at_us: int) -> Job:  # noqa: ARG002
        return self._write(lambda tx: jobs.set_desired(tx, job_id, desired, at_us))

    # --- what the outside may read

    def jobs(self, finished: bool = True) -> list[Job]:
        return self._database.glance(lambda c: jobs.jobs(c, finished))

    def newest_jobs(self, limit: int, finished: bool = True) -> tuple[list[Job], int]:
        return self._database.read(lambda c: jobs.newest_jobs(c, limit, finished))

    def find_job(self, name_or_id: str) -> Job | None:
        return self._database.glance(lambda c: jobs.find_job(c, name_or_id))

    def job_of_request(self, request_id: str) -> Job | None:
        return self._database.read(lambda c: jobs.job_of_request(c, request_id))

    def job_names(self, job_ids: Collection[str]) -> dict[str, str]:
        return self._database.read(lambda c: jobs.job_names(c, job_ids))

    def job_nodes(self, job_id: str) -> list[Node]:
        return self._database.glance(lambda c: nodes.job_nodes(c, job_id))

    def active_nodes(self) -> list[Node]:
        return self._database.glance(nodes.active_nodes)

    def booted_nodes(self) -> dict[str, NodeState]:
        return self._database.glance(nodes.booted_nodes)

    def find_nodes(self, node_ids: Sequence[str]) -> list[Node]:
        return self._database.glance(lambda c: nodes.find_nodes(c, node_ids))

    def events(self, job_id: str | None, after_id: int = 0, limit: int = 500) -> list[EventRow]:
        return self._database.read(lambda c: event_log.events(c, job_id, after_id, limit))

    def last_event(self, job_id: str, kind: str) -> EventRow | None:
        return self._database.read(lambda c: event_log.last_event(c, job_id, kind))

    def events_of(self, job_id: str, kinds: Sequence[str], since_us: int = 0) -> list[EventRow]:
        return self._database.read(lambda c: event_log.events_of(c, job_id, kinds, since_us))

    def image_digest(self, job_id: str) -> str:
        return self._database.read(lambda c: event_log.image_digest(c, job_id))

    def segments(self, job_id: str | None = None) -> list[SegmentRow]:
        return self._database.read(lambda c: ledger.segments(c, job_id))

    def checkpoints(self, job_id: str) -> list[CheckpointRow]:
        return self._database.read(lambda c: event_log.checkpoints(c, job_id))

    def progress(self, job_id: str, after: int = 0) -> list[ProgressRow]:
        return self._database.read(lambda c: event_log.progress(c, job_id, after))

    def spec_yaml(self, job_id: str) -> str:
        return str(self._database.read(lambda c: jobs.column(c, job_id, "spec_yaml")))

    def job_key(self, job_id: str) -> bytes:
        return bytes(self._database.read(lambda c: jobs.column(c, job_id, "job_key")))

    def secrets(self, job_id: str) -> dict[str, bytes]:
        return self._database.read(lambda c: jobs.secrets(c, job_id))

    def log_offsets(self, job_id: str) -> dict[tuple[int, int, str], int]:
        return self._database.read(lambda c: event_log.log_offsets(c, job_id))

    def record_log_offset(self, node_id: str, stream: str, offset: int) -> None:
        self._write(lambda tx: event_log.record_log_offset(tx, node_id, stream, offset))

    # --- duties

    def take_duty(self, duty: str, holder: str, now: Callable[[], int], ttl_us: int) -> int | None:
        def work(conn: Connection) -> int | None:
            return leases.take_duty(conn, duty, holder, now, ttl_us)

        try:
            return self._database.write(work)
        except BrokenRuleError:
            return self._database.write(work)  # two asked first, at the same moment

    def take_duties(
        self, duties_: Collection[str], holder: str, now: Callable[[], int], ttl_us: int
    ) -> dict[str, int | None]:
        return self._database.write(
            lambda conn: leases.take_duties(conn, duties_, holder, now, ttl_us)
        )

    def fenced(self, duty: str, epoch: int) -> SqlStore:
        fence = leases.LeaseFence(duty, epoch)
        return SqlStore(self._database, self._deployment, self._notify, self._markets, fence)

    def hold_duty(self, now_us: int) -> None:
        fence = self._fence
        if fence is None:
            raise ValueError("no duty belongs to this store")
        self._database.read(lambda c: leases.check(c, fence, now_us))

    def free_duties(self) -> None:
        """Let go of every duty, for holders that are known to be dead."""
        self._database.write(leases.free_all)

    def newest_us(self) -> int:
        return self._database.read(leases.newest_us)

    def due_alerts(self, now_us: int, limit: int) -> list[AlertRow]:
        return self._database.glance(lambda c: alerts.due_alerts(c, now_us, limit))

    def mark_alerts(
        self, rows: Sequence[AlertRow], sent_at_us: int, next_at_us: int, error: str
    ) -> None:
        self._write(lambda tx: alerts.mark_alerts(tx, rows, sent_at_us, next_at_us, error))

    def add_event(self, job_id: str, event: Event, at_us: int) -> None:
        self._write(lambda tx: event_log.add_event(tx, job_id, event, at_us))

    def prune(self, before_us: int) -> int:
        deleted = some = self._write(lambda tx: event_log.prune_some(tx.conn, before_us))
        while some:
            some = self._write(lambda tx: event_log.prune_some(tx.conn, before_us))
            deleted += some
        return deleted

    # --- machines that nobody wants

    def asked_for(
        self, provider: str, instances: Sequence[OwnedResource]
    ) -> dict[str, NodeRowTimes]:
        return self._database.read(lambda c: orphans.asked_for(c, provider, instances))

    def record_renewed(self, node_id: str, until_us: int) -> None:
        self._write(lambda tx: orphans.record_renewed(tx.conn, node_id, until_us))

    def release_orphans(self, name: str, at_us: int) -> None:
        self._database.write(lambda c: orphans.release(c, name, at_us))

    def orphans_released_us(self, name: str) -> int:
        return self._database.read(lambda c: orphans.released_us(c, name))

    def claims(self) -> tuple[int, int]:
        return self._database.read(deployment_claim.claims)

    def record_claim(self, confirmed: int, intended: int) -> None:
        self._write(lambda tx: deployment_claim.record(tx.conn, confirmed, intended))

    def record_home(self, home: int, moved: str, at_us: int) -> None:
        self._write(lambda tx: deployment_claim.record_home(tx, home, moved, at_us))

    # --- the deployment

    def deployment(self) -> str:
        return self._deployment

    def quarantine(self) -> str:
        return str(self._database.glance(lambda c: c.execute(quarantine.REASON).scalar_one()))

    def set_quarantine(self, reason: str, at_us: int) -> None:
        self._write(lambda tx: quarantine.set_quarantine(tx, reason, at_us))

    def set_limits(self, limits: Limits) -> None:
        self._write(lambda tx: market.set_limits(tx, limits))

    def close(self) -> None:
        self._database.close()


def _keeps_the_contract(store: SqlStore) -> None:
    """For the type checker alone: SqlStore is a Store."""
    from spotd.store.interface import Store  # noqa: PLC0415

    _: Store = store
