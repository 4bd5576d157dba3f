"""Copy data sets ahead to the regions where a job may run next, through this box, at a limited
rate.

One copy runs at a time, on its own thread; nothing waits for it. The cost is recorded before it is
spent, so a box that dies has counted too much and never too little; the next one finds the progress
in the stores. A copy stops for a machine in that region that needs the same data.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from providers.catalogs.storage import storage_prices
from providers.dollars import format_microusd
from providers.stores.base import ObjectInfo, ObjectStore, StoreError
from providers.stores.dataset_copy import (
    CopyLock,
    DatasetCopyError,
    copy_dataset,
    is_complete,
    is_data,
    list_data,
    missing_objects,
    request_counts,
)
from spotd.base.clock import Clock
from spotd.base.errors import UserError
from spotd.domain.events import Event, Severity
from spotd.domain.job import Desired, Job
from spotd.domain.market import Market
from spotd.money.focus import month_of
from spotd.planner.core.safe_mode_gate import safe
from spotd.planner.core.shard_stores import place_among, way_of
from spotd.planner.rules.prefetch_datasets import (
    PlannedCopy,
    beyond_job,
    left_of,
    legs,
    next_offers,
    region_of,
    within,
)
from spotd.store import errors
from spotd.store.dataset_costs import month_microusd, paid_by_copy
from spotd.store.interface import Store
from spotd.store.transfers import DataTransfer

log = structlog.get_logger(__name__)

LOOK_S = 10.0  # while a copy is made, at whether it is wanted still
PAUSE_S = 900.0  # after one that failed
BEGUN, DONE, NOT = "staging_ahead", "staged_ahead", "not_staged"  # kinds of events


class _EndedError(Exception):
    """The copy ends; the text is the reason, and is alerted if it is `news`."""

    def __init__(self, text: str, *, news: bool = False) -> None:
        super().__init__(text)
        self.news = news


@dataclass(frozen=True)
class _Work:
    """`left_microusd` is the amount that the job may still spend, None without a max_cost_usd."""

    store: Store
    job: Job
    leg: PlannedCopy
    left_microusd: int | None


class DatasetPrefetch:
    """Copies data sets ahead.

    `market()` is the current market, `bytes_per_s()` the limit, `note(url)` is called for a
    complete copy. `reckon(store, job)` records the cost of the job's data so far. While
    `contested()` returns a reason nothing is copied.
    """

    def __init__(
        self,
        market: Callable[[], Market],
        open_store: Callable[[str], ObjectStore],
        clock: Clock,
        bytes_per_s: Callable[[], int],
        note: Callable[[str], None],
        reckon: Callable[[Store, Job], None],
        contested: Callable[[], str] = str,
    ) -> None:
        self._market, self._open_store, self._clock = market, open_store, clock
        self._bytes_per_s, self._note = bytes_per_s, note
        self._reckon, self._contested = reckon, contested
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._turns: dict[str, CopyLock] = {}  # by copy: that somebody else may have now
        self._paused_s: dict[tuple[str, str], float] = {}  # (job, copy) -> until when
        self._looked_s = 0.0

    def look(self, store: Store) -> None:
        """The periodic task: begin the next due copy, unless one is being made. Raises
        spotd.store.errors.StoreError."""
        if self._stopped.is_set() or (self._thread is not None and self._thread.is_alive()):
            return
        market = self._market()
        if self._withheld(market):
            return
        self._end_gone(store)
        work = self._next(store, market)
        if work is not None:
            self._thread = threading.Thread(
                target=self._work, args=(work,), name="ahead", daemon=True
            )
            self._thread.start()

    def _withheld(self, market: Market) -> str:
        """Why nothing may be bought now, or ""."""
        return self._contested() or ("safe mode" if safe(market, self._clock.now_us()) else "")

    def stop(self, timeout_s: float = 0.0) -> None:
        """Stop soon; the next box sends an unfinished object again."""
        self._stopped.set()
        self.wait(timeout_s)

    def wait(self, timeout_s: float) -> None:
        """Wait for the copy in progress."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _next(self, store: Store, market: Market) -> _Work | None:
        now_us = self._clock.now_us()
        for job in store.jobs.rows(finished=False):
            if not job.spec.preferences.ahead.regions or job.desired is not Desired.RUN:
                continue
            if job.spec.limits.max_cost_microusd:
                self._reckon(store, job)
            view = store.load_view(job.id, now_us)
            if view is None:
                continue
            left = left_of(view)
            paid = paid_by_copy(store.transfers.rows(job.id), market)
            here = {region_of(node.offer) for node in view.nodes if node.active}
            offers = next_offers(view, market, now_us, here)
            for leg in within(legs(job.spec, market, offers, paid), paid, left):
                if leg.staged:
                    continue
                if leg.refused:
                    self._tell(store, job, leg, NOT, _not_brought(leg, leg.refused), wrong=True)
                elif time.monotonic() >= self._paused_s.get((job.id, leg.copy), 0.0):
                    return _Work(store, job, leg, left)
        return None

    def _work(self, work: _Work) -> None:
        store, job, leg = work.store, work.job, work.leg
        try:
            self._bring(work)
        except _EndedError as ended:
            if ended.news:
                text = _not_brought(leg, str(ended))
                self._tell(store, job, leg, NOT, text, wrong=True)
                self._pause(work)
        except (StoreError, DatasetCopyError, UserError) as error:
            self._pause(work)
            self._tell(store, job, leg, NOT, _not_brought(leg, str(error)), wrong=True)
        except errors.LostLeaseError:
            log.info("another daemon copies data now", copy=leg.copy)
        except errors.StoreError as error:
            log.warning("the store does not answer", duty="stage", error=str(error))
        except Exception:
            self._pause(work)
            log.exception("data was not copied", copy=leg.copy)

    def _pause(self, work: _Work) -> None:
        self._paused_s[work.job.id, work.leg.copy] = time.monotonic() + PAUSE_S

    def _bring(self, work: _Work) -> None:
        leg = work.leg
        source, near = self._open_store(leg.source), self._open_store(leg.copy)
        turn = self._turns.setdefault(leg.copy, CopyLock(near))
        if is_complete(near):
            self._note(leg.copy)
            return
        if not turn.acquire():
            return  # a machine, or another box, that may be gone: the next looks will say
        del self._turns[leg.copy]
        with turn.held():
            if is_complete(near):  # a machine finished it between the look above and the lock
                self._note(leg.copy)
                return
            self._permit(work, missing_objects(list_data(source), near), begin=True)
            text = f"{_named(leg)} is being copied ahead of the job"
            self._tell(work.store, work.job, leg, BEGUN, text)
            copy_dataset(source, near, lambda batch: self._permit(work, batch), self._pacing(work))
        now_us = self._clock.now_us()
        work.store.transfers.add(self._shipment(work, staged_at_us=now_us, began_at_us=now_us))
        self._note(leg.copy)
        spent = paid_by_copy(work.store.transfers.rows(work.job.id), self._market()).get(
            leg.copy, 0
        )
        text = (
            f"{_named(leg)} was copied ahead of the job, for {format_microusd(spent)} with a month "
            "there"
        )
        self._tell(work.store, work.job, leg, DONE, text)
        work.store.jobs.mark_due([work.job.id])

    def _permit(self, work: _Work, batch: Sequence[ObjectInfo], *, begin: bool = False) -> None:
        """Record the cost of these objects if it is within the cap.

        With `begin` only check whether all of them may be copied.
        """
        self._check_wanted(work)
        store, leg, market = work.store, work.leg, self._market()
        size = sum(one.size for one in batch)
        egress = -(-size * leg.gb_microusd // 10**9)
        requests = self._requests_microusd(leg, market, batch)
        rows = [row for row in store.transfers.rows(work.job.id) if not row.node_id]
        adds = egress + requests + month_microusd(leg.copy, size, market)
        most = work.job.spec.preferences.ahead.max_microusd
        spent = sum(paid_by_copy(rows, market).values())
        if spent + adds > most:
            text = f"{format_microusd(spent)} is spent, and {format_microusd(adds)} more exceeds"
            raise _EndedError(f"{text} stage_ahead.max_usd of {format_microusd(most)}", news=True)
        way = sum(row.egress_microusd for row in rows if row.url == leg.copy)
        one_way = market.stores.datasets[leg.name].max_microusd
        if way + egress > one_way:
            text = (
                f"its transfer would cost {format_microusd(way + egress)}, above max_usd of "
                "data set"
            )
            raise _EndedError(f"{text} {leg.name}", news=True)
        if begin and work.left_microusd is not None and adds > work.left_microusd:
            raise _EndedError(beyond_job(adds), news=True)
        if not begin:
            now_us = self._clock.now_us()
            fields = {"bytes": size, "egress_microusd": egress, "requests_microusd": requests}
            store.transfers.add(self._shipment(work, began_at_us=now_us, **fields))

    def _shipment(self, work: _Work, **fields: int) -> DataTransfer:
        month_us, _ = month_of(self._clock.now_us())
        return DataTransfer(work.job.id, work.leg.copy, "", month_us, **fields)

    def _requests_microusd(
        self, leg: PlannedCopy, market: Market, batch: Sequence[ObjectInfo]
    ) -> int:
        reads = sum(request_counts(one)[0] for one in batch)
        writes = sum(request_counts(one)[1] for one in batch)
        prices = storage_prices()
        read = prices.get(place_among(leg.source, market.stores.places).cloud)
        written = prices.get(place_among(leg.copy, market.stores.places).cloud)
        cost = reads * (read.microusd_per_1000_reads if read else 0)
        cost += writes * (written.microusd_per_1000_writes if written else 0)
        return -(-cost // 1000)

    def _check_wanted(self, work: _Work) -> None:
        """Raise _EndedError if the copy is no longer wanted."""
        if self._stopped.is_set():
            raise _EndedError("this box stops")
        leg, job = work.leg, work.store.jobs.find(work.job.id)
        if job is None or job.outcome is not None or job.desired is not Desired.RUN:
            raise _EndedError("the job no longer needs it")
        market = self._market()
        if why := self._withheld(market):
            raise _EndedError(why)
        data = market.stores.datasets.get(leg.name)
        if data is None or data.url != leg.source or leg.copy not in data.copies:
            raise _EndedError("it is no longer declared")
        for node in work.store.nodes.active():
            if way_of(data, node.offer, market.stores.places).near != leg.copy:
                continue
            other = work.store.jobs.find(node.job_id)
            if other and any(
                bucket.url == f"dataset://{leg.name}" for bucket in other.spec.files.buckets
            ):
                raise _EndedError("a machine there needs it, and copies it itself")

    def _pacing(self, work: _Work) -> Callable[[int], None]:
        due_s = looked_s = time.monotonic()

        def came(size: int) -> None:
            nonlocal due_s, looked_s
            due_s = max(due_s, time.monotonic() - 1.0) + size / self._bytes_per_s()
            self._stopped.wait(max(0.0, due_s - time.monotonic()))
            if self._stopped.is_set() or time.monotonic() >= looked_s + LOOK_S:
                self._check_wanted(work)
                looked_s = time.monotonic()

        return came

    def _end_gone(self, store: Store) -> None:
        """Stop counting copies that were deleted. Each is checked once an hour."""
        if time.monotonic() < self._looked_s:
            return
        self._looked_s = time.monotonic() + 3600.0
        rows = store.transfers.rows()
        lying = {(row.job_id, row.url) for row in rows if not row.node_id and not row.gone_at_us}
        for job_id, url in sorted(lying):
            try:
                near = self._open_store(url)
                if is_complete(near) or any(is_data(one) for one in near.list("")):
                    continue
            except (StoreError, UserError) as error:
                log.warning("a copy cannot be checked", url=url, error=str(error))
                continue
            store.transfers.end(job_id, url, self._clock.now_us())

    def _tell(
        self, store: Store, job: Job, leg: PlannedCopy, kind: str, text: str, *, wrong: bool = False
    ) -> None:
        """Alert once on each copy until there is something new to say."""
        rows = store.events.of_kinds(job.id, [kind])
        texts = [row.event.text for row in rows if row.event.data.get("copy") == leg.copy]
        if texts[-1:] != [text]:
            severity = Severity.WARNING if wrong else Severity.INFO
            about = {"copy": leg.copy}
            event = Event(kind, text, severity=severity, key=f"{kind}:{leg.copy}", data=about)
            store.events.add(job.id, event, self._clock.now_us())


def _named(leg: PlannedCopy) -> str:
    return f"data set {leg.name} ({leg.size_bytes / 1e9:,.4g} GB) at {leg.copy}"


def _not_brought(leg: PlannedCopy, why: str) -> str:
    return f"data set {leg.name} is not copied ahead to {leg.copy}: {why}"
