"""The repositories of MemoryStore: one per noun, with the methods of `spotd.store`'s."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from providers.base import Instance, Notice, Offer, Scope
from providers.images import Image
from spotd.domain.events import Event
from spotd.domain.fault_drill import FaultDrill
from spotd.domain.health import HealthSpec
from spotd.domain.job import Desired, HeadSnapshot, Job
from spotd.domain.market import Market
from spotd.domain.node import EffectKind, Node
from spotd.domain.node_history import FleetHistory
from spotd.domain.queue import Limits
from spotd.domain.states import NodeState
from spotd.domain.view import Throughput
from spotd.history.interruption_stats import MachineLife
from spotd.history.recent_rate import StepWindow
from spotd.planner.core.checkpoint_interval import ObservedLifetimes
from spotd.security.master_key import KeyState, SealedValue
from spotd.store.alerts import AlertRow, RouteRow
from spotd.store.audit import AuditRow
from spotd.store.checkpoints import CheckpointRow
from spotd.store.deployment import CONFIRMED, INTENDED
from spotd.store.evaluations import EvaluationRow
from spotd.store.events import EventRow
from spotd.store.images import ImageRow
from spotd.store.instances import Listing
from spotd.store.jobs import JobPage, Submission
from spotd.store.journal import JournalBatch
from spotd.store.ledger import SegmentRow
from spotd.store.logins import EndedAccess, LoginSession, UserToken
from spotd.store.market import PricePoint
from spotd.store.orphans import NodeRowTimes, OwnedResource
from spotd.store.outputs import StoredOutput
from spotd.store.progress import ProgressRow
from spotd.store.secrets import SecretRow
from spotd.store.storage_costs import StorageCost
from spotd.store.transfers import DataTransfer
from spotd.store.users import DisabledUser
from tests.sim.memory import (
    alerts,
    drills,
    duties,
    evaluations,
    images,
    invoices,
    jobs,
    journal,
    listing,
    lives,
    logins,
    market,
    nodes,
    people,
    record,
    sealed,
    stays,
    strays,
    views,
)
from tests.sim.memory import ledger as segment_rows
from tests.sim.memory.session import MemorySession
from tests.sim.memory.transaction import Transaction


class _Repository:
    def __init__(self, session: MemorySession) -> None:
        self._session = session


class MemoryAlerts(_Repository):
    """Replaces `spotd.store.sql_store.SqlStore.alerts`."""

    def due(self, now_us: int, limit: int) -> list[AlertRow]:
        return alerts.due_alerts(self._session.here(), now_us, limit)

    def mark(self, rows: Sequence[AlertRow], sent_at_us: int, next_at_us: int, error: str) -> None:
        self._session.write(alerts.mark_alerts, rows, sent_at_us, next_at_us, error)

    def put_off(self, rows: Sequence[AlertRow], next_at_us: int) -> None:
        self._session.write(alerts.put_off_alerts, rows, next_at_us)

    def routes(self) -> list[RouteRow]:
        return alerts.route_rows(self._session.here())


class MemoryAudit(_Repository):
    """Replaces `spotd.store.sql_store.SqlStore.audit`."""

    def add(self, row: AuditRow) -> None:
        self._session.write(people.add_audit, row)

    def rows(self, since_us: int, after_id: int = 0, limit: int = 500) -> list[AuditRow]:
        return people.audit(self._session.here(), since_us, after_id, limit)


class MemoryJobs(_Repository):
    """Replaces `spotd.store.sql_store.SqlStore.jobs`."""

    def owners(self) -> dict[str, str]:
        return people.job_owners(self._session.here())

    def ended(self, limit: int) -> tuple[list[Job], int]:
        return jobs.ended_jobs(self._session.here(), limit)

    def pause(self, job_id: str, said: Event, at_us: int) -> bool:
        return self._session.write(jobs.pause, job_id, said, at_us)

    def claim(self, now_us: int, owner: str, limit: int, lease_us: int) -> list[str]:
        return self._session.write(jobs.claim, now_us, limit, lease_us)

    def next_wake_us(self) -> int | None:
        return jobs.next_wake_us(self._session.here())

    def submit(self, submission: Submission, at_us: int) -> Job:
        return self._session.write(jobs.submit, submission, at_us)

    def page(self, wanted: JobPage) -> tuple[list[Job], int]:
        return jobs.page(self._session.here(), wanted)

    def ask_approval(self, job_id: str, asked_by: str, text: str, at_us: int) -> Job:
        return self._session.write(jobs.ask_approval, job_id, asked_by, text, at_us)

    def set_desired(self, job_id: str, desired: Desired, at_us: int) -> Job:
        return self._session.write(jobs.set_desired, job_id, desired, at_us)

    def rows(self, finished: bool = True) -> list[Job]:
        return jobs.jobs(self._session.here(), finished)

    def newest(self, limit: int, finished: bool = True) -> tuple[list[Job], int]:
        return jobs.newest_jobs(self._session.here(), limit, finished)

    def find(self, name_or_id: str) -> Job | None:
        return jobs.find_job(self._session.here(), name_or_id)

    def find_by_request(self, request_id: str) -> Job | None:
        return jobs.job_of_request(self._session.here(), request_id)

    def names(self, job_ids: Collection[str]) -> dict[str, str]:
        return jobs.job_names(self._session.here(), job_ids)

    def users(self, job_ids: Collection[str]) -> dict[str, str]:
        return invoices.job_users(self._session.here(), job_ids)

    def spec_yaml(self, job_id: str) -> str:
        return jobs.submission_of(self._session.here(), job_id).spec_yaml

    def key(self, job_id: str) -> bytes:
        return jobs.submission_of(self._session.here(), job_id).job_key

    def secrets(self, job_id: str) -> dict[str, bytes]:
        return jobs.secrets(self._session.here(), job_id)

    def mark_due(self, job_ids: Sequence[str]) -> None:
        self._session.write(Transaction.touch, dict.fromkeys(job_ids, 0))

    def record_head(self, job_id: str, head: HeadSnapshot) -> None:
        self._session.write(jobs.record_head, job_id, head)


class MemoryUsers(_Repository):
    """Replaces `spotd.store.sql_store.SqlStore.users`."""

    def disabled(self) -> list[DisabledUser]:
        return people.disabled_users(self._session.here())

    def disable(self, row: DisabledUser) -> list[str]:
        return self._session.write(people.disable_user, row)

    def enable(self, name: str) -> bool:
        return self._session.write(people.enable_user, name)

    def add_admission(self, node_id: str, user: str, at_us: int) -> None:
        self._session.write(people.add_admission, node_id, user, at_us)

    def admitted_though_disabled(self) -> list[tuple[str, str]]:
        return people.shut_out(self._session.here())

    def record_dismissed(self, node_id: str, user: str, at_us: int) -> None:
        self._session.write(people.record_dismissed, node_id, user, at_us)


class MemoryLogins(_Repository):
    """Replaces `spotd.store.sql_store.SqlStore.logins`."""

    def add_token(self, token: UserToken) -> None:
        self._session.write(logins.add_token, token)

    def tokens(self) -> list[UserToken]:
        tokens = self._session.here().user_tokens.values()
        return sorted(tokens, key=lambda token: (token.name, token.made_at_us, token.id))

    def token(self, token_id: str) -> UserToken | None:
        return self._session.here().user_tokens.get(token_id)

    def revoke_token(self, token_id: str) -> bool:
        return self._session.write(logins.revoke_token, token_id)

    def begin_session(self, session: LoginSession) -> bool:
        return self._session.write(logins.begin_session, session)

    def find_session(self, digest: str, now_us: int) -> LoginSession | None:
        session = self._session.here().login_sessions.get(digest)
        return session if session and session.expires_at_us > now_us else None

    def end_session(self, digest: str) -> None:
        self._session.write(logins.end_session, digest)

    def end_access(self, name: str) -> EndedAccess:
        return self._session.write(logins.end_access, name)

    def end_token_sessions(self) -> None:
        self._session.write(logins.end_token_sessions)

    def end_provider_sessions(self) -> None:
        self._session.write(logins.end_provider_sessions)


class MemorySecrets(_Repository):
    """Replaces `spotd.store.sql_store.SqlStore.secrets`."""

    def key_state(self) -> KeyState:
        return self._session.here().key

    def store_key_check(self, check: bytes) -> KeyState:
        return self._session.write(sealed.keep_key_check, check)

    def rotate_key(
        self, epoch: int, check: bytes, reseal: Callable[[SealedValue], bytes]
    ) -> KeyState:
        return self._session.write(sealed.rotate_key, epoch, check, reseal)

    def rows(self) -> list[SecretRow]:
        return sealed.kept_secrets(self._session.here())

    def values(self, names: Collection[str]) -> dict[str, bytes]:
        return sealed.kept_secret_values(self._session.here(), names)

    def put(self, row: SecretRow, value: bytes, key_epoch: int) -> None:
        self._session.write(sealed.keep_secret, row, value, key_epoch)

    def delete(self, name: str) -> bool:
        return self._session.write(sealed.drop_secret, name)


class MemoryMarket(_Repository):
    """Replaces `spotd.store.sql_store.SqlStore.market`."""

    def record_offers(self, provider: str, offers: Sequence[Offer], at_us: int) -> None:
        self._session.write(market.record_offers, provider, offers, at_us)

    def record_provider(self, provider: str, disabled: str, at_us: int) -> None:
        self._session.write(market.record_provider, provider, disabled, at_us)

    def price_history(self, offer_keys: Collection[str], since_us: int) -> list[PricePoint]:
        return market.price_history(self._session.here(), offer_keys, since_us)

    def lift_refusals(self, code: str, offer_keys: Collection[str], at_us: int) -> int:
        return self._session.write(market.lift_refusals, code, offer_keys, at_us)

    def load(self, now_us: int) -> Market:
        return market.load_market(self._session.here(), now_us)

    def set_limits(self, limits: Limits) -> None:
        self._session.write(market.set_limits, limits)


class MemoryNodeHistory(_Repository):
    """Replaces `spotd.store.sql_store.SqlStore.node_history`."""

    def observed_lifetimes(self, since_us: int) -> list[ObservedLifetimes]:
        return record.lives(self._session.here(), since_us)

    def fleet(self, since_us: int, now_us: int) -> FleetHistory:
        return stays.past(self._session.here(), since_us, now_us)

    def machine_lives(self, since_us: int) -> list[MachineLife]:
        return lives.machine_lives(self._session.here(), since_us)


class MemoryNodes(_Repository):
    """Replaces `spotd.store.sql_store.SqlStore.nodes`."""

    def record_cleaned(self, image: ImageRow, at_us: int) -> None:
        self._session.write(nodes.record_cleaned, image, at_us)

    def record_image(self, node_id: str, image: Image, at_us: int) -> None:
        self._session.write(nodes.record_image, node_id, image, at_us)

    def record_launched(self, node_id: str, instance_id: str, at_us: int) -> None:
        self._session.write(nodes.record_launched, node_id, instance_id, at_us)

    def record_launch_refused(
        self, node_id: str, code: str, text: str, scope: Scope, at_us: int
    ) -> None:
        self._session.write(nodes.record_launch_refused, node_id, code, text, scope, at_us)

    def record_absent(self, node_id: str, at_us: int) -> None:
        self._session.write(nodes.record_absent, node_id, at_us)

    def record_effect_failed(
        self, node_id: str, effect: EffectKind, text: str, at_us: int, pause_s: float = 0.0
    ) -> None:
        self._session.write(nodes.record_effect_failed, node_id, effect, text, at_us, pause_s)

    def record_booted(self, node_id: str, at_us: int) -> None:
        self._session.write(nodes.record_booted, node_id, at_us)

    def record_acknowledged(
        self, node_id: str, effect: EffectKind, at_us: int, claim: str = ""
    ) -> None:
        self._session.write(nodes.record_told, node_id, effect, at_us, claim)

    def record_credential_lease(self, node_id: str, at_us: int, until_us: int) -> None:
        self._session.write(nodes.record_lent, node_id, at_us, until_us)

    def record_heartbeats(self, heard: Mapping[str, int]) -> None:
        self._session.write(nodes.record_heard, heard)

    def record_link(self, node_id: str, down_at_us: int) -> None:
        self._session.write(nodes.record_link, node_id, down_at_us)

    def mark_silent_due(self, before_us: int) -> None:
        self._session.write(nodes.note_silent, before_us)

    def of_job(self, job_id: str) -> list[Node]:
        return nodes.job_nodes(self._session.here(), job_id)

    def active(self) -> list[Node]:
        return nodes.active_nodes(self._session.here())

    def of_provider(self, provider: str, limit: int) -> list[Node]:
        return nodes.nodes_of_provider(self._session.here(), provider, limit)

    def booted(self) -> dict[str, NodeState]:
        return nodes.booted_nodes(self._session.here())

    def find(self, node_ids: Sequence[str]) -> list[Node]:
        return nodes.find_nodes(self._session.here(), node_ids)

    def record_renewed(self, node_id: str, until_us: int) -> None:
        self._session.write(strays.record_renewed, node_id, until_us)


class MemoryImages(_Repository):
    """Replaces `spotd.store.sql_store.SqlStore.images`."""

    def rows(self) -> list[ImageRow]:
        return images.images(self._session.here())

    def request_removal(self, node_ids: Collection[str], at_us: int) -> None:
        self._session.write(images.unwant, node_ids, at_us)

    def record_gone(self, node_id: str, at_us: int) -> None:
        self._session.write(images.record_gone, node_id, at_us)

    def adopt(self, image: ImageRow) -> None:
        self._session.write(images.adopt, image)


class MemoryEvents(_Repository):
    """Replaces `spotd.store.sql_store.SqlStore.events`."""

    def of_deployment(self, kinds: Sequence[str], since_us: int) -> list[EventRow]:
        return record.events_of(self._session.here(), "", kinds, since_us)

    def rows(self, job_id: str | None, after_id: int = 0, limit: int = 500) -> list[EventRow]:
        return record.events(self._session.here(), job_id, after_id, limit)

    def last(self, job_id: str, kind: str) -> EventRow | None:
        return record.last_event(self._session.here(), job_id, kind)

    def of_kinds(self, job_id: str, kinds: Sequence[str], since_us: int = 0) -> list[EventRow]:
        return record.events_of(self._session.here(), job_id, kinds, since_us)

    def keys(self, kind: str, since_us: int) -> set[str]:
        return invoices.event_keys(self._session.here(), kind, since_us)

    def add(self, job_id: str, event: Event, at_us: int) -> None:
        self._session.write(record.add_event, job_id, event, at_us)

    def prune(self, before_us: int) -> int:
        return self._session.write(record.prune, before_us)

    def image_digest(self, job_id: str) -> str:
        return record.image_digest(self._session.here(), job_id)


class MemoryLedger(_Repository):
    """Replaces `spotd.store.sql_store.SqlStore.ledger`."""

    def record_invoiced(self, amounts: Mapping[int, int], at_us: int) -> None:
        self._session.write(invoices.record_invoiced, amounts, at_us)

    def segments(self, job_id: str | None = None) -> list[SegmentRow]:
        return segment_rows.segments(self._session.here(), job_id)


class MemoryStorageCosts(_Repository):
    """Replaces `spotd.store.sql_store.SqlStore.storage_costs`."""

    def rows(self, month_us: int = 0) -> list[StorageCost]:
        return invoices.carriages(self._session.here(), month_us)

    def record(self, row: StorageCost) -> None:
        self._session.write(invoices.record_carriage, row)


class MemoryCheckpoints(_Repository):
    """Replaces `spotd.store.sql_store.SqlStore.checkpoints`."""

    def record_removed(self, job_id: str, manifest: str, at_us: int) -> None:
        self._session.write(invoices.record_removed, job_id, manifest, at_us)

    def rows(self, job_id: str) -> list[CheckpointRow]:
        return record.checkpoints(self._session.here(), job_id)


class MemoryProgress(_Repository):
    """Replaces `spotd.store.sql_store.SqlStore.progress`."""

    def rows(self, job_id: str, after: int = 0) -> list[ProgressRow]:
        return record.progress(self._session.here(), job_id, after)

    def windows(self, job_ids: Iterable[str], since_us: int) -> dict[str, StepWindow]:
        return record.step_windows(self._session.here(), job_ids, since_us)

    def recent_throughput(
        self, now_us: int
    ) -> dict[str, tuple[HealthSpec, tuple[Throughput, ...]]]:
        return views.recent_throughput(self._session.here(), now_us)


class MemoryLogs(_Repository):
    """Replaces `spotd.store.sql_store.SqlStore.logs`."""

    def offsets(self, job_id: str) -> dict[tuple[int, int, str], int]:
        return record.log_offsets(self._session.here(), job_id)

    def record_offset(self, node_id: str, stream: str, offset: int) -> None:
        self._session.write(record.record_log_offset, node_id, stream, offset)


class MemoryTransfers(_Repository):
    """Replaces `spotd.store.sql_store.SqlStore.transfers`."""

    def rows(self, job_id: str = "") -> list[DataTransfer]:
        return invoices.shipments(self._session.here(), job_id)

    def add(self, row: DataTransfer) -> None:
        self._session.write(invoices.add_shipment, row)

    def end(self, job_id: str, url: str, at_us: int) -> None:
        self._session.write(invoices.end_shipment, job_id, url, at_us)


class MemoryEvaluations(_Repository):
    """Replaces `spotd.store.sql_store.SqlStore.evaluations`."""

    def record(self, row: EvaluationRow) -> bool:
        return self._session.write(evaluations.record, row)

    def rows(self, job_id: str = "") -> list[EvaluationRow]:
        rows = self._session.here().evaluations.items()
        found = sorted(rows, key=lambda item: (item[1].at_us, item[0]))
        return [row for _, row in found if job_id in ("", row.job_id)]


class MemoryOutputs(_Repository):
    """Replaces `spotd.store.sql_store.SqlStore.outputs`."""

    def rows(self, job_id: str) -> list[StoredOutput]:
        rows = self._session.here().outputs.values()
        mine = [row for row in rows if row.job_id == job_id]
        return sorted(
            mine, key=lambda row: (row.stored_at_us, row.generation, row.rank, row.manifest)
        )


class MemoryDrills(_Repository):
    """Replaces `spotd.store.sql_store.SqlStore.drills`."""

    def add(self, drill: FaultDrill) -> FaultDrill:
        return self._session.write(drills.add, drill)

    def update(self, drill: FaultDrill, said: Event | None = None) -> bool:
        return self._session.write(drills.change, drill, said)

    def rows(self, job_id: str = "", *, unfinished: bool = False) -> list[FaultDrill]:
        found = sorted(
            self._session.here().drills.values(), key=lambda one: (one.asked_at_us, one.id)
        )
        own = [one for one in found if job_id in ("", one.job_id)]
        return [one for one in own if not (unfinished and one.ended_at_us)]


class MemoryInstances(_Repository):
    """Replaces `spotd.store.sql_store.SqlStore.instances`."""

    def record_listing(
        self,
        provider: str,
        instances: Sequence[Instance],
        asked_at_us: int,
        at_us: int,
        visibility_s: float = 0.0,
    ) -> list[Instance]:
        said = Listing(provider, instances, asked_at_us, at_us, visibility_s)
        return self._session.write(listing.record_listing, said)

    def record_notices(self, provider: str, notices: Sequence[Notice], at_us: int) -> None:
        self._session.write(listing.record_cloud_notices, provider, notices, at_us)


class MemoryJournal(_Repository):
    """Replaces `spotd.store.sql_store.SqlStore.journal`."""

    def record(self, batches: Sequence[JournalBatch]) -> None:
        self._session.write(journal.record_journal, batches)


class MemoryLeases(_Repository):
    """Replaces `spotd.store.sql_store.SqlStore.leases`."""

    def check(self, now_us: int) -> None:
        tables, fence = self._session.here(), self._session.fence
        if fence is None:
            raise ValueError("no duty belongs to this store")
        duties.check(tables, fence, now_us)

    def take(self, duty: str, holder: str, now: Callable[[], int], ttl_us: int) -> int | None:
        return self._session.write(duties.take_duty, duty, holder, now, ttl_us)

    def take_many(
        self, names: Collection[str], holder: str, now: Callable[[], int], ttl_us: int
    ) -> dict[str, int | None]:
        return self._session.write(duties.take_duties, names, holder, now, ttl_us)

    def release_all(self) -> None:
        self._session.write(duties.free_all)

    def newest_us(self) -> int:
        return duties.newest_us(self._session.here())


class MemoryOrphans(_Repository):
    """Replaces `spotd.store.sql_store.SqlStore.orphans`."""

    def known(self, provider: str, instances: Sequence[OwnedResource]) -> dict[str, NodeRowTimes]:
        return strays.asked_for(self._session.here(), provider, instances)

    def release(self, name: str, at_us: int) -> None:
        self._session.write(strays.release, name, at_us)

    def released_us(self, name: str) -> int:
        return strays.released_us(self._session.here(), name)


class MemoryDeployment(_Repository):
    """Replaces `spotd.store.sql_store.SqlStore.deployment`."""

    def id(self) -> str:
        return self._session.here().deployment

    def claims(self) -> tuple[int, int]:
        counters = self._session.here().counters
        return counters.get(CONFIRMED, 0), counters.get(INTENDED, 0)

    def record_claim(self, confirmed: int, intended: int) -> None:
        self._session.write(strays.record_claim, confirmed, intended)

    def record_home(self, home: int, moved: str, at_us: int) -> None:
        self._session.write(strays.record_home, home, moved, at_us)

    def quarantine(self) -> str:
        return self._session.here().quarantine

    def set_quarantine(self, reason: str, at_us: int) -> None:
        self._session.write(market.set_quarantine, reason, at_us)
