"""MemoryStore: the store in plain Python, for simulations that make a thousand passes a second.

It keeps the contract of `spotd.store.interface` to the letter: `SqlStore` and it share the rules,
and the same tests run on both. One thread, no clock, no randomness; nothing survives the process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Concatenate, ParamSpec, TypeVar

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
from spotd.store.commit_effects import rejection
from spotd.store.deployment_claim import CONFIRMED, INTENDED
from spotd.store.engine import BrokenRuleError
from spotd.store.instance_listing import Listing
from spotd.store.interface import (
    AlertRow,
    CheckpointRow,
    CommitResult,
    CommitStatus,
    EventRow,
    JournalBatch,
    ProgressRow,
    RouteRow,
    SegmentRow,
    Store,
    StoreUnavailableError,
    Submission,
)
from spotd.store.leases import LeaseFence
from spotd.store.orphan_records import NodeRowTimes, OwnedResource
from tests.sim.memory import (
    alerts,
    commit,
    duties,
    jobs,
    journal,
    listing,
    market,
    nodes,
    record,
    strays,
    views,
)
from tests.sim.memory import ledger as segment_rows
from tests.sim.memory.kept_drills import MemoryDrills
from tests.sim.memory.tables import Tables
from tests.sim.memory.transaction import Transaction

P = ParamSpec("P")
T = TypeVar("T")


class MemoryStore(MemoryDrills):
    """See `spotd.store.interface.Store`. `notify` is called after every transaction that made a job
    due.

    While `away` is true every method but `close` raises StoreUnavailableError.
    """

    def __init__(self, deployment: str, notify: Callable[[], None]) -> None:
        self.away = False
        self._notify = notify
        self._tables = Tables(deployment)

    def snapshot(self) -> Tables:
        """Everything as it is now, for `restore`. What is in it is not to be changed."""
        return self._tables.copy()

    def restore(self, snapshot: Tables) -> None:
        """Everything is as it was then, however often."""
        self._tables = snapshot.copy()

    def _write(
        self, work: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """`work` in one transaction: all of it, or nothing when it raises."""
        tx = Transaction(self._here())
        try:
            result = work(tx, *args, **kwargs)
            tx.flush()
        except BaseException:
            tx.undo()
            raise
        if tx.due:
            self._notify()
        return result

    def _here(self) -> Tables:
        if self.away:
            raise StoreUnavailableError("the database does not answer: it is away")
        return self._tables

    # --- the loop

    def claim(self, now_us: int, owner: str, limit: int, lease_us: int) -> list[str]:
        return self._write(jobs.claim, now_us, limit, lease_us)

    def due(self, now_us: int) -> dict[str, int]:
        """The jobs that are due, claimed or not, and since when: for who judges."""
        return {job_id: at_us for job_id, at_us in self._tables.due.items() if at_us <= now_us}

    def node_of(self, token: str) -> Node | None:
        """The node of that token: for who judges."""
        tables = self._tables
        node_id = tables.tokens.get(token)
        return None if node_id is None else tables.nodes[node_id]

    def next_wake_us(self) -> int | None:
        return jobs.next_wake_us(self._here())

    def load_view(self, job_id: str, now_us: int) -> View | None:
        return self.load_views([job_id], now_us).get(job_id)

    def load_views(self, job_ids: Sequence[str], now_us: int) -> dict[str, View]:
        return views.load_views(self._here(), job_ids, now_us)

    def load_market(self, now_us: int) -> Market:
        return market.load_market(self._here(), now_us)

    def commit(self, view: View, plan: Plan, now_us: int) -> CommitResult:
        return self.commit_many([(view, plan)], now_us)[0]

    def commit_many(self, plans: Sequence[tuple[View, Plan]], now_us: int) -> list[CommitResult]:
        try:
            return self._write(commit.commit_many, plans, now_us)
        except (BrokenRuleError, ValueError) as error:
            # One bad plan must not stop the others: each by itself then.
            if len(plans) > 1:
                return [self.commit(view, plan, now_us) for view, plan in plans]
            if isinstance(error, ValueError):
                raise
            return [self._reject(plans[0][0], str(error), now_us)]

    def _reject(self, view: View, text: str, now_us: int) -> CommitResult:
        """Keep the claim, so that the plan is not tried again at once, and tell."""
        event = rejection(view.job.id, text)
        self._write(Transaction.event, view.job.id, event, now_us)
        return CommitResult(CommitStatus.REJECTED, text=event.text)

    # --- observations

    def record_launched(self, node_id: str, instance_id: str, at_us: int) -> None:
        self._write(nodes.record_launched, node_id, instance_id, at_us)

    def record_launch_refused(
        self, node_id: str, code: str, text: str, scope: Scope, at_us: int
    ) -> None:
        self._write(nodes.record_launch_refused, node_id, code, text, scope, at_us)

    def record_absent(self, node_id: str, at_us: int) -> None:
        self._write(nodes.record_absent, node_id, at_us)

    def record_listing(
        self,
        provider: str,
        instances: Sequence[Instance],
        asked_at_us: int,
        at_us: int,
        visibility_s: float = 0.0,
    ) -> list[Instance]:
        said = Listing(provider, instances, asked_at_us, at_us, visibility_s)
        return self._write(listing.record_listing, said)

    def record_effect_failed(
        self, node_id: str, effect: EffectKind, text: str, at_us: int, pause_s: float = 0.0
    ) -> None:
        self._write(nodes.record_effect_failed, node_id, effect, text, at_us, pause_s)

    def record_booted(self, node_id: str, at_us: int) -> None:
        self._write(nodes.record_booted, node_id, at_us)

    def record_told(self, node_id: str, effect: EffectKind, at_us: int, claim: str = "") -> None:
        self._write(nodes.record_told, node_id, effect, at_us, claim)

    def record_lent(self, node_id: str, at_us: int, until_us: int) -> None:
        self._write(nodes.record_lent, node_id, at_us, until_us)

    def record_head(self, job_id: str, head: HeadSnapshot) -> None:
        self._write(jobs.record_head, job_id, head)

    def record_journal(self, batches: Sequence[JournalBatch]) -> None:
        self._write(journal.record_journal, batches)

    def record_heard(self, heard: Mapping[str, int]) -> None:
        self._write(nodes.record_heard, heard)

    def record_link(self, node_id: str, down_at_us: int) -> None:
        self._write(nodes.record_link, node_id, down_at_us)

    def record_cloud_notices(self, provider: str, notices: Sequence[Notice], at_us: int) -> None:
        self._write(listing.record_cloud_notices, provider, notices, at_us)

    def note_jobs(self, job_ids: Sequence[str]) -> None:
        self._write(Transaction.touch, dict.fromkeys(job_ids, 0))

    def note_silent(self, before_us: int) -> None:
        self._write(nodes.note_silent, before_us)

    def recent_throughput(
        self, now_us: int
    ) -> dict[str, tuple[HealthSpec, tuple[Throughput, ...]]]:
        return views.recent_throughput(self._here(), now_us)

    # --- users

    def submit(self, submission: Submission, at_us: int) -> Job:
        return self._write(jobs.submit, submission, at_us)

    def set_desired(self, job_id: str, desired: Desired, actor: str, at_us: int) -> Job:
        return self._write(jobs.set_desired, job_id, desired, at_us)

    # --- what the outside may read

    def jobs(self, finished: bool = True) -> list[Job]:
        return jobs.jobs(self._here(), finished)

    def newest_jobs(self, limit: int, finished: bool = True) -> tuple[list[Job], int]:
        return jobs.newest_jobs(self._here(), limit, finished)

    def job_of_request(self, request_id: str) -> Job | None:
        return jobs.job_of_request(self._here(), request_id)

    def find_job(self, name_or_id: str) -> Job | None:
        return jobs.find_job(self._here(), name_or_id)

    def job_names(self, job_ids: Collection[str]) -> dict[str, str]:
        return jobs.job_names(self._here(), job_ids)

    def job_nodes(self, job_id: str) -> list[Node]:
        return nodes.job_nodes(self._here(), job_id)

    def active_nodes(self) -> list[Node]:
        return nodes.active_nodes(self._here())

    def booted_nodes(self) -> dict[str, NodeState]:
        return nodes.booted_nodes(self._here())

    def find_nodes(self, node_ids: Sequence[str]) -> list[Node]:
        return nodes.find_nodes(self._here(), node_ids)

    def events(self, job_id: str | None, after_id: int = 0, limit: int = 500) -> list[EventRow]:
        return record.events(self._here(), job_id, after_id, limit)

    def last_event(self, job_id: str, kind: str) -> EventRow | None:
        return record.last_event(self._here(), job_id, kind)

    def events_of(self, job_id: str, kinds: Sequence[str], since_us: int = 0) -> list[EventRow]:
        return record.events_of(self._here(), job_id, kinds, since_us)

    def image_digest(self, job_id: str) -> str:
        return record.image_digest(self._here(), job_id)

    def segments(self, job_id: str | None = None) -> list[SegmentRow]:
        return segment_rows.segments(self._here(), job_id)

    def checkpoints(self, job_id: str) -> list[CheckpointRow]:
        return record.checkpoints(self._here(), job_id)

    def progress(self, job_id: str, after: int = 0) -> list[ProgressRow]:
        return record.progress(self._here(), job_id, after)

    def spec_yaml(self, job_id: str) -> str:
        return jobs.submission_of(self._here(), job_id).spec_yaml

    def job_key(self, job_id: str) -> bytes:
        return jobs.submission_of(self._here(), job_id).job_key

    def secrets(self, job_id: str) -> dict[str, bytes]:
        return jobs.secrets(self._here(), job_id)

    def log_offsets(self, job_id: str) -> dict[tuple[int, int, str], int]:
        return record.log_offsets(self._here(), job_id)

    def record_log_offset(self, node_id: str, stream: str, offset: int) -> None:
        self._write(record.record_log_offset, node_id, stream, offset)

    # --- duties

    def take_duty(self, duty: str, holder: str, now: Callable[[], int], ttl_us: int) -> int | None:
        return self._write(duties.take_duty, duty, holder, now, ttl_us)

    def take_duties(
        self, names: Collection[str], holder: str, now: Callable[[], int], ttl_us: int
    ) -> dict[str, int | None]:
        return self._write(duties.take_duties, names, holder, now, ttl_us)

    def fenced(self, duty: str, epoch: int) -> MemoryStore:
        return _Fenced(self, LeaseFence(duty, epoch))

    def hold_duty(self, now_us: int) -> None:
        self._here()
        raise ValueError("no duty belongs to this store")

    def free_duties(self) -> None:
        """See SqlStore.free_duties."""
        self._write(duties.free_all)

    def newest_us(self) -> int:
        return duties.newest_us(self._here())

    def due_alerts(self, now_us: int, limit: int) -> list[AlertRow]:
        return alerts.due_alerts(self._here(), now_us, limit)

    def route_rows(self) -> list[RouteRow]:
        return alerts.route_rows(self._here())

    def mark_alerts(
        self, rows: Sequence[AlertRow], sent_at_us: int, next_at_us: int, error: str
    ) -> None:
        self._write(alerts.mark_alerts, rows, sent_at_us, next_at_us, error)

    def add_event(self, job_id: str, event: Event, at_us: int) -> None:
        self._write(record.add_event, job_id, event, at_us)

    def prune(self, before_us: int) -> int:
        return self._write(record.prune, before_us)

    # --- machines that nobody wants

    def asked_for(
        self, provider: str, instances: Sequence[OwnedResource]
    ) -> dict[str, NodeRowTimes]:
        return strays.asked_for(self._here(), provider, instances)

    def record_renewed(self, node_id: str, until_us: int) -> None:
        self._write(strays.record_renewed, node_id, until_us)

    def release_orphans(self, name: str, at_us: int) -> None:
        self._write(strays.release, name, at_us)

    def claims(self) -> tuple[int, int]:
        counters = self._here().counters
        return counters.get(CONFIRMED, 0), counters.get(INTENDED, 0)

    def record_claim(self, confirmed: int, intended: int) -> None:
        self._write(strays.record_claim, confirmed, intended)

    def record_home(self, home: int, moved: str, at_us: int) -> None:
        self._write(strays.record_home, home, moved, at_us)

    def orphans_released_us(self, name: str) -> int:
        return strays.released_us(self._here(), name)

    # --- the deployment

    def deployment(self) -> str:
        return self._here().deployment

    def quarantine(self) -> str:
        return self._here().quarantine

    def set_quarantine(self, reason: str, at_us: int) -> None:
        self._write(market.set_quarantine, reason, at_us)

    def set_limits(self, limits: Limits) -> None:
        self._write(market.set_limits, limits)

    def close(self) -> None:
        """There is nothing to close."""


class _Fenced(MemoryStore):
    """The store of a holder: each write is held against its fence."""

    def __init__(self, whole: MemoryStore, fence: LeaseFence) -> None:
        self._whole = whole
        self._fence = fence
        self._notify = whole._notify

    def _here(self) -> Tables:
        return self._whole._here()

    def _write(
        self, work: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        duties.hold(self._here(), self._fence)
        return super()._write(work, *args, **kwargs)

    def hold_duty(self, now_us: int) -> None:
        duties.check(self._here(), self._fence, now_us)


def _keeps_the_contract(store: MemoryStore) -> None:
    """For the type checker alone: MemoryStore is a Store."""
    _: Store = store
