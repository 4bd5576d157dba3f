"""The daemon's periodic tasks: list instances, refresh prices, send alerts, detect silence, prune.

Each task has a lease, so that one replica at a time does it. Leases are renewed every few seconds,
more often than most tasks run: when a replica dies, others take over all its tasks within LEASE_S +
RENEW_S. A task writes only through a store that is fenced with the epoch of its lease. APScheduler
keeps the times.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial

import structlog
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from providers.base import Provider, ProviderError
from spotd.act.expiry_renewal import renew_expiries
from spotd.base.clock import Clock
from spotd.config.schedule import Schedule
from spotd.domain.market import Timing
from spotd.domain.units import S
from spotd.observe.clouds import InstanceSurvey, NoticeQueue
from spotd.observe.prices import Quotes
from spotd.observe.provider_warnings import ProviderWarnings
from spotd.planner.core.slow_detection import slow
from spotd.planner.queue.fair_share import givers
from spotd.store.errors import LostLeaseError, StoreError, StoreUnavailableError
from spotd.store.interface import Store

log = structlog.get_logger(__name__)

OWN = "_own"  # (no name of a provider) the line of duties that ask no cloud
OWN_THREADS = 4
LEASES = "_leases"  # the line of their renewal: it waits for nothing else
CLOUD_THREADS = 2  # of each cloud: one that hangs keeps its own duties waiting, and no others
# Without a renewal for so long, a replica counts as dead (`timing.lease_s`). Three renewals may
# fail in a row, and a takeover comes well within the 45 s that we promise.
LOCKED_AT_MOST = 2  # leases in one round of renewals; of more, the store itself is away
SET_BACK_S = 1.0  # a wall clock that lost more than this was set, not steered
FIRST_OFFERS_S = (
    3.0  # how long the start waits for prices; jobs without prices are decided on later
)


class PeriodicTasks:
    """Starts and stops the schedule. `deliver(store)` sends due alerts."""

    def __init__(
        self,
        store: Store,
        providers: Mapping[str, Provider],
        survey: InstanceSurvey,
        deliver: Callable[[Store], None],
        clock: Clock,
        holder: str,
        timing: Timing,
        schedule: Schedule,
    ) -> None:
        self._store = store
        self._providers = providers
        self._survey = survey
        self._deliver = deliver
        self._clock = clock
        self._holder = holder
        self._timing = timing
        self._schedule = schedule
        self.remarks = ProviderWarnings(store, providers, clock)
        self._contested: Callable[[], str] = str
        self._renewed: Callable[[str], None] = lambda _error: None
        self._more: list[tuple[float, str, Callable[[Store], object]]] = []
        self._changed = threading.Condition()
        self._stopping = False
        self._running = 0
        self._wall_s = _wall_s()
        self._names: tuple[str, ...] = ()
        self._watched: dict[str, Provider] = {}
        self._prompt: set[str] = set()  # done as soon as they are ours
        self._epochs: dict[str, int] = {}  # of the duties that we hold, as far as we know
        self._queues: dict[str, NoticeQueue] = {}
        self._paged: defaultdict[str, set[str]] = defaultdict(set)
        self._scheduler = BackgroundScheduler(
            executors={OWN: ThreadPoolExecutor(OWN_THREADS), LEASES: ThreadPoolExecutor(1)},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": 60},
        )

    def start(self) -> None:
        """Fetch prices, then start the schedule. Wait at most FIRST_OFFERS_S for slow clouds."""
        s = self._schedule
        first_prices = [self._watch(name, provider) for name, provider in self._providers.items()]
        untold = partial(self._guarded, "untold", self._record_untold)
        self._scheduler.add_job(untold, "interval", seconds=s.notices_s, id="untold", executor=OWN)
        self._every(s.alerts_s, "alerts", self._deliver)
        self._every(s.silence_s, "silence", self._note_silent)
        self._every(s.health_s, "health", self._note_slow)
        for seconds, duty, run in self._more:
            self._every(seconds, duty, run)
        self._every(s.prune_s, "prune", self._prune)
        renew = partial(self._guarded, LEASES, self._renew_and_tell)
        self._scheduler.add_job(renew, "interval", seconds=s.renew_s, id=LEASES, executor=LEASES)
        renew()
        self._scheduler.start()
        end_s = time.monotonic() + FIRST_OFFERS_S
        for fetched in first_prices:
            fetched.wait(max(end_s - time.monotonic(), 0.0))

    def add(self, seconds: float, duty: str, run: Callable[[Store], object]) -> None:
        """Add a task before the start: call `run` every `seconds` with the lease holder's store."""
        self._more.append((seconds, duty, run))

    def stand_still(self, contested: Callable[[], str]) -> None:
        """Make no calls to clouds while `contested()` returns a reason.

        Set it before the start; see act/claim.py.
        """
        self._contested = contested

    def tell_renewals(self, renewed: Callable[[str], None]) -> None:
        """Set, before the start, the callback for each lease renewal's error ("" for success)."""
        self._renewed = renewed

    def change(self, timing: Timing, schedule: Schedule) -> None:
        """Use new timings and intervals, and the providers that are configured now."""
        before, self._schedule, self._timing = self._schedule, schedule, timing
        self._scheduler.pause()  # nothing new is done before it is ours to do
        for job in self._scheduler.get_jobs():
            rhythm = "renew_s" if job.id == LEASES else f"{job.id.partition(':')[0]}_s"
            seconds = getattr(schedule, rhythm, None)  # None: no setting changes it
            if seconds != getattr(before, rhythm, None):
                job.reschedule("interval", seconds=seconds)
        for name, provider in list(self._watched.items()):
            if self._providers.get(name) is not provider:
                self._leave(name)
        for name, provider in self._providers.items():
            if name not in self._watched:
                self._watch(name, provider)
        self._guarded(LEASES, self._renew_and_tell)
        self._scheduler.resume()

    def notice_clock(self) -> None:
        """Detect a wall clock that was set back, and make every task due.

        Call it regularly from outside: the scheduler uses the wall clock, and would pause until the
        clock has caught up.
        """
        before_s, self._wall_s = self._wall_s, _wall_s()
        back_s = before_s - self._wall_s
        if back_s < SET_BACK_S:
            self._wall_s = max(before_s, self._wall_s)  # many small steps are one
            return
        log.warning("the clock was set back", seconds=round(back_s, 1))
        for job in self._scheduler.get_jobs():
            job.modify(next_run_time=datetime.now(UTC))

    def stop(self, patience_s: float) -> bool:
        """Start no more tasks, wait for running ones, and release the leases.

        Returns False if a task still runs after `patience_s`.
        """
        with self._changed:
            self._stopping = True
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)
        with self._changed:
            ended = self._changed.wait_for(lambda: not self._running, patience_s)
        self._let_go(sorted(self._epochs))
        return ended

    def _let_go(self, duties: Iterable[str]) -> None:
        """Release leases, so that another replica can take them at once."""
        try:
            for duty in duties:
                self._store.leases.take(duty, self._holder, self._clock.now_us, 0)
        except StoreError as error:
            log.warning("the store does not answer", error=str(error))

    def _watch(self, name: str, provider: Provider) -> threading.Event:
        """Start the tasks of a cloud. The returned event is set once its prices were fetched."""
        s, fetched = self._schedule, threading.Event()
        self._watched[name] = provider
        self._scheduler.add_executor(ThreadPoolExecutor(CLOUD_THREADS), name)
        self._every(s.survey_s, f"survey:{name}", partial(self._survey.sweep, name), name)
        self._every(
            s.offers_s, f"offers:{name}", Quotes(provider, self._clock).refresh, name, fetched
        )
        # Now as well: a daemon that dies again and again is there, and renews.
        now = threading.Event()
        self._every(s.expiry_s, f"expiry:{name}", partial(self._move_on, name), name, now)
        # And `spotctl orphans` should not answer "not swept yet" for minutes.
        clear_up = partial(self._survey.clear_up, name)
        self._every(s.leftovers_s, f"leftovers:{name}", clear_up, name, now)
        self._queues.setdefault(name, NoticeQueue(self._store, name, self._clock))
        self._every(s.notices_s, f"notices:{name}", partial(self._notices, name), name)
        return fetched

    def _leave(self, name: str) -> None:
        """Stop the tasks of a cloud. Running ones end by themselves."""
        del self._watched[name]
        duties = [duty for duty in self._names if duty.endswith(f":{name}")]
        self._names = tuple(duty for duty in self._names if duty not in duties)
        for duty in duties:
            self._scheduler.remove_job(duty)
        self._scheduler.remove_executor(name, shutdown=False)
        with self._changed:
            held = [duty for duty in duties if self._epochs.pop(duty, None) is not None]
        self._let_go(held)

    def _renew_and_tell(self) -> None:
        error = ""
        try:
            self._renew()
        except StoreError as failed:
            error = str(failed)
            raise
        finally:
            self._renewed(error)

    def _renew(self) -> None:
        """Take every free lease and renew our own.

        A lease that cannot be renewed now stays as it is: the store refuses writes of an overtaken
        holder. A lease that is locked by our own write does not delay the others.
        """
        ttl_us, failed = int(self._schedule.lease_s * S), 0
        taken = self._store.leases.take_many(self._names, self._holder, self._clock.now_us, ttl_us)
        self._note_taken(taken)
        for duty in [duty for duty in self._names if duty not in taken]:
            try:
                epoch = self._store.leases.take(duty, self._holder, self._clock.now_us, ttl_us)
                self._note_taken({duty: epoch})
            except StoreUnavailableError as error:
                failed += 1
                if failed > LOCKED_AT_MOST:
                    raise
                log.info("a lease was not renewed", duty=duty, error=str(error))

    def _note_taken(self, taken: Mapping[str, int | None]) -> None:
        with self._changed:
            newly_held = {
                duty for duty, epoch in taken.items() if epoch and duty not in self._epochs
            }
            for duty, epoch in taken.items():
                if epoch is None:
                    self._epochs.pop(duty, None)
                else:
                    self._epochs[duty] = epoch
        # At the start the lease may still have been that of a daemon that died.
        for job in self._scheduler.get_jobs() if newly_held & self._prompt else ():
            if job.id in newly_held & self._prompt:
                job.modify(next_run_time=datetime.now(UTC))

    def _every(
        self,
        seconds: float,
        duty: str,
        run: Callable[[Store], object],
        line: str = OWN,
        at_once: threading.Event | None = None,
    ) -> None:
        """Run `run(store)` each `seconds` while we hold the duty, with the store of its holder.
        With `at_once` also as soon as we do, and set that after the first time."""

        def held() -> None:
            if line != OWN and self._contested():
                return  # the clouds are another's
            with self._changed:
                epoch = self._epochs.get(duty)
            if epoch is not None:
                run(self._store.fenced(duty, epoch))

        def guarded() -> None:
            self._guarded(duty, held)
            if at_once is not None:
                at_once.set()

        self._names = (*self._names, duty)
        if at_once is not None:
            self._prompt.add(duty)
        first = {"next_run_time": datetime.now(UTC)} if at_once is not None else {}
        self._scheduler.add_job(
            guarded, "interval", seconds=seconds, id=duty, executor=line, **first
        )

    def _guarded(self, duty: str, run: Callable[[], None]) -> None:
        with self._changed:
            if self._stopping:
                return
            self._running += 1
        try:
            run()
        except LostLeaseError:
            log.info("another daemon has this duty now", duty=duty)
            with self._changed:
                self._epochs.pop(duty, None)
        except StoreError as error:
            log.warning("the store does not answer", duty=duty, error=str(error))
        except ProviderError as error:
            log.warning("a cloud does not answer", duty=duty, error=str(error))
        except Exception:
            log.exception("a duty failed", duty=duty)
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def _notices(self, name: str, store: Store) -> None:
        self._queues[name].hear(store, self._providers[name])

    def _record_untold(self) -> None:
        """Record cloud notices and provider warnings that only this process has received.

        This needs no lease: if this daemon was overtaken meanwhile, no other daemon knows them.
        """
        for queue in list(self._queues.values()):
            queue.record()
        self.remarks.tell()

    def _move_on(self, name: str, store: Store) -> None:
        provider, paged = self._providers[name], self._paged[name]
        renew_expiries(store, provider, self._clock, self._timing, paged)

    def _note_silent(self, store: Store) -> None:
        """Make jobs with silent nodes due; the planner decides."""
        before_us = self._clock.now_us() - int(self._timing.suspect_after_s * S)
        store.nodes.mark_silent_due(before_us)

    def _note_slow(self, store: Store) -> None:
        """Make jobs due that train slower than before or should yield machines to others."""
        now_us = self._clock.now_us()
        job_ids = givers(store.market.load(now_us), now_us)
        job_ids += [
            job_id
            for job_id, (spec, samples) in store.progress.recent_throughput(now_us).items()
            if slow(samples, spec, now_us)
        ]
        if job_ids:
            store.jobs.mark_due(job_ids)

    def _prune(self, store: Store) -> None:
        rows = store.events.prune(self._clock.now_us() - int(self._schedule.keep_s * S))
        log.info("pruned", rows=rows)


def _wall_s() -> float:
    """Return how far the wall clock is ahead of the monotonic clock, in seconds."""
    return datetime.now(UTC).timestamp() - time.monotonic()
