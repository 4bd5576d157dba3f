"""SqlStore: the store on SQLite and PostgreSQL, put together from one module a noun."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from sqlalchemy import Connection

from providers.base import Instance, Notice, Offer, Scope
from spotd.model import (
    Desired,
    EffectKind,
    Event,
    HeadSeen,
    HealthSpec,
    Job,
    Limits,
    Market,
    Node,
    Throughput,
    View,
)
from spotd.plan import Plan
from spotd.states import NodeState
from spotd.store import (
    alerts,
    audit,
    jobs,
    journal,
    ledger,
    listing,
    market,
    nodes,
    people,
    record,
    sealed,
    throughput,
    views,
)
from spotd.store.accepted import rejection
from spotd.store.base import (
    AlertRow,
    AuditRow,
    CheckpointRow,
    CommitResult,
    CommitStatus,
    DisabledUser,
    EventRow,
    JournalBatch,
    KeyState,
    ProgressRow,
    SealedValue,
    SecretRow,
    SegmentRow,
    Submission,
)
from spotd.store.commit import LostRaceError, commit_many
from spotd.store.engine import BrokenRuleError, Database
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


class SqlStore:
    """See `spotd.store.base.Store`; made by `open_store`. Safe to share between threads."""

    def __init__(self, database: Database, deployment: str, notify: Callable[[], None]) -> None:
        self._database = database
        self._deployment = deployment
        self._notify = notify
        self._markets = market.Markets()

    def _write(self, work: Callable[[Transaction], T], *, ahead: bool = False) -> T:
        due = False

        def run(conn: object) -> T:
            nonlocal due
            tx = Transaction(conn)  # type: ignore[arg-type]
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
        return self._database.read(jobs.next_wake_us)

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
            offers = self._markets.offers
            return self._write(lambda tx: commit_many(tx, plans, offers, now_us), ahead=True)
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
        found = listing.Listing(provider, instances, asked_at_us, at_us, visibility_s)
        return self._write(lambda tx: listing.record_listing(tx, found))

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

    def record_head(self, job_id: str, head: HeadSeen) -> None:
        self._write(lambda tx: jobs.record_head(tx, job_id, head))

    def record_journal(self, batches: Sequence[JournalBatch]) -> None:
        self._write(lambda tx: journal.record_journal(tx, batches), ahead=True)

    def record_heard(self, heard: Mapping[str, int]) -> None:
        self._write(lambda tx: nodes.record_heard(tx, dict(heard)), ahead=True)

    def record_link(self, node_id: str, down_at_us: int) -> None:
        self._write(lambda tx: nodes.record_link(tx, node_id, down_at_us), ahead=True)

    def record_offers(self, provider: str, offers: Sequence[Offer], at_us: int) -> None:
        self._write(lambda tx: market.record_offers(tx, provider, offers, at_us))

    def record_provider(self, provider: str, disabled: str, at_us: int) -> None:
        self._write(lambda tx: market.record_provider(tx, provider, disabled, at_us))

    def record_cloud_notices(self, provider: str, notices: Sequence[Notice], at_us: int) -> None:
        self._write(lambda tx: listing.record_cloud_notices(tx, provider, notices, at_us))

    def note_jobs(self, job_ids: Sequence[str]) -> None:
        self._write(lambda tx: tx.touch(dict.fromkeys(job_ids, 0)))

    def note_silent(self, before_us: int) -> None:
        self._write(lambda tx: nodes.note_silent(tx, before_us))

    def recent_throughput(
        self, now_us: int
    ) -> dict[str, tuple[HealthSpec, tuple[Throughput, ...]]]:
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
        return self._database.read(lambda c: jobs.jobs(c, finished))

    def find_job(self, name_or_id: str) -> Job | None:
        return self._database.read(lambda c: jobs.find_job(c, name_or_id))

    def job_nodes(self, job_id: str) -> list[Node]:
        return self._database.read(lambda c: nodes.job_nodes(c, job_id))

    def active_nodes(self) -> list[Node]:
        return self._database.read(nodes.active_nodes)

    def booted_nodes(self) -> dict[str, NodeState]:
        return self._database.read(nodes.booted_nodes)

    def find_nodes(self, node_ids: Sequence[str]) -> list[Node]:
        return self._database.read(lambda c: nodes.find_nodes(c, node_ids))

    def events(self, job_id: str | None, after_id: int = 0, limit: int = 500) -> list[EventRow]:
        return self._database.read(lambda c: record.events(c, job_id, after_id, limit))

    def segments(self, job_id: str | None = None) -> list[SegmentRow]:
        return self._database.read(lambda c: ledger.segments(c, job_id))

    def checkpoints(self, job_id: str) -> list[CheckpointRow]:
        return self._database.read(lambda c: record.checkpoints(c, job_id))

    def progress(self, job_id: str, after: int = 0) -> list[ProgressRow]:
        return self._database.read(lambda c: record.progress(c, job_id, after))

    def spec_yaml(self, job_id: str) -> str:
        return str(self._database.read(lambda c: jobs.column(c, job_id, "spec_yaml")))

    def job_key(self, job_id: str) -> bytes:
        return bytes(self._database.read(lambda c: jobs.column(c, job_id, "job_key")))

    def secrets(self, job_id: str) -> dict[str, bytes]:
        return self._database.read(lambda c: jobs.secrets(c, job_id))

    def log_offsets(self, job_id: str) -> dict[tuple[int, int, str], int]:
        return self._database.read(lambda c: record.log_offsets(c, job_id))

    def record_log_offset(self, node_id: str, stream: str, offset: int) -> None:
        self._write(lambda tx: record.record_log_offset(tx, node_id, stream, offset))

    # --- duties

    def take_duty(self, duty: str, holder: str, now_us: int, ttl_us: int) -> int | None:
        return self._database.write(lambda c: alerts.take_duty(c, duty, holder, now_us, ttl_us))

    def newest_us(self) -> int:
        return self._database.read(alerts.newest_us)

    def due_alerts(self, now_us: int, limit: int) -> list[AlertRow]:
        return self._database.read(lambda c: alerts.due_alerts(c, now_us, limit))

    def mark_alerts(
        self, epoch: int, rows: Sequence[AlertRow], sent_at_us: int, next_at_us: int, error: str
    ) -> bool:
        return self._write(
            lambda tx: alerts.mark_alerts(tx, epoch, rows, sent_at_us, next_at_us, error)
        )

    def add_event(self, job_id: str, event: Event, at_us: int) -> None:
        self._write(lambda tx: record.add_event(tx, job_id, event, at_us))

    def prune(self, before_us: int) -> int:
        deleted = some = self._database.write(lambda c: record.prune_some(c, before_us))
        while some:
            some = self._database.write(lambda c: record.prune_some(c, before_us))
            deleted += some
        return deleted

    # --- people

    def add_audit(self, row: AuditRow) -> None:
        self._write(lambda tx: audit.add_audit(tx, row))

    def audit(self, since_us: int, after_id: int = 0, limit: int = 500) -> list[AuditRow]:
        return self._database.read(lambda c: audit.audit(c, since_us, after_id, limit))

    def job_owners(self) -> dict[str, str]:
        return self._database.read(people.job_owners)

    def disabled_users(self) -> list[DisabledUser]:
        return self._database.read(people.disabled_users)

    def disable_user(self, row: DisabledUser) -> list[str]:
        return self._write(lambda tx: people.disable_user(tx, row))

    def enable_user(self, name: str) -> bool:
        return self._write(lambda tx: people.enable_user(tx, name))

    def add_admission(self, node_id: str, user: str, at_us: int) -> None:
        self._write(lambda tx: people.add_admission(tx, node_id, user, at_us))

    def shut_out(self) -> list[tuple[str, str]]:
        return self._database.read(people.shut_out)

    def record_dismissed(self, node_id: str, user: str, at_us: int) -> None:
        self._write(lambda tx: people.record_dismissed(tx, node_id, user, at_us))

    # --- the deployment

    def deployment(self) -> str:
        return self._deployment

    def key_state(self) -> KeyState:
        return self._database.read(sealed.key_state)

    def keep_key_check(self, check: bytes) -> KeyState:
        return self._database.write(lambda c: sealed.keep_key_check(c, check))

    def rotate_key(
        self, epoch: int, check: bytes, reseal: Callable[[SealedValue], bytes]
    ) -> KeyState:
        return self._database.write(lambda c: sealed.rotate_key(c, epoch, check, reseal))

    def kept_secrets(self) -> list[SecretRow]:
        return self._database.read(sealed.kept_secrets)

    def kept_secret_values(self, names: Collection[str]) -> dict[str, bytes]:
        return self._database.read(lambda c: sealed.kept_secret_values(c, names))

    def keep_secret(self, row: SecretRow, value: bytes, key_epoch: int) -> None:
        self._database.write(lambda c: sealed.keep_secret(c, row, value, key_epoch))

    def drop_secret(self, name: str) -> bool:
        return self._database.write(lambda c: sealed.drop_secret(c, name))

    def set_limits(self, limits: Limits) -> None:
        self._write(lambda tx: market.set_limits(tx, limits))

    def close(self) -> None:
        self._database.close()


def _keeps_the_contract(store: SqlStore) -> None:
    """For the type checker alone: SqlStore is a Store."""
    from spotd.store.base import Store  # noqa: PLC0415

    _: Store = store
