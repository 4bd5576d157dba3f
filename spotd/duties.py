"""The periodic duties: list the clouds, refresh prices, deliver alerts, look for silence, prune.

Each has a lease, so that one replica does it at a time. Leases are renewed every few seconds, much
more often than most duties are done: a replica that dies is succeeded in all of them within LEASE_S
+ RENEW_S. A duty writes through a store that is fenced with its epoch, and through no other.
APScheduler says when.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import structlog
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from providers.base import Provider, ProviderError
from spotd.act.renewal import renew_expiries
from spotd.clock import Clock
from spotd.decide.health import slow
from spotd.decide.queueing import givers
from spotd.model import S, Timing
from spotd.observe.clouds import NoticeQueue, Survey
from spotd.observe.prices import Quotes
from spotd.observe.remarks import Remarks
from spotd.store.base import LostDutyError, Store, StoreError, StoreUnavailableError

log = structlog.get_logger(__name__)

OWN = "_own"  # (no name of a provider) the line of duties that ask no cloud
OWN_THREADS = 4
LEASES = "_leases"  # the line of their renewal: it waits for nothing else
CLOUD_THREADS = 2  # of each cloud: one that hangs keeps its own duties waiting, and no others
# Without a renewal for so long, a replica counts as dead (`timing.lease_s`). Three renewals may
# fail in a row, and a takeover comes well within the 45 s that we promise.
LEASE_S = 20.0
RENEW_S = 5.0
LOCKED_AT_MOST = 2  # leases in one round of renewals; of more, the store itself is away
SET_BACK_S = 1.0  # a wall clock that lost more than this was set, not steered
FIRST_OFFERS_S = 3.0  # how long the start waits for prices; jobs that wait for them are told later


@dataclass(frozen=True)
class Schedule:
    """How often, in seconds."""

    survey_s: float = 10.0
    offers_s: float = 60.0
    notices_s: float = 15.0
    alerts_s: float = 1.0
    silence_s: float = 5.0
    health_s: float = 30.0
    leftovers_s: float = 300.0
    expiry_s: float = 300.0  # between looks at whose expiry is to be moved on
    prune_s: float = 3600.0
    keep_s: float = 90 * 86_400.0  # history older than this is pruned
    lease_s: float = LEASE_S
    renew_s: float = RENEW_S


class Duties:
    """Starts and stops the schedule. `deliver(store)` sends due alerts."""

    def __init__(
        self,
        store: Store,
        providers: Mapping[str, Provider],
        survey: Survey,
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
        self.remarks = Remarks(store, providers, clock)
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
        """Ask for prices, then keep to the schedule. A cloud that does not answer holds up nobody
        for long."""
        s = self._schedule
        asked = [self._watch(name, provider) for name, provider in self._providers.items()]
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
        for done in asked:
            done.wait(max(end_s - time.monotonic(), 0.0))

    def add(self, seconds: float, duty: str, run: Callable[[Store], object]) -> None:
        """One more duty, before the start: `run(store)` each `seconds`, with the store of its
        holder."""
        self._more.append((seconds, duty, run))

    def stand_still(self, contested: Callable[[], str]) -> None:
        """While `contested()` says why, no cloud is asked for anything. To be set before the start;
        see act/claim.py."""
        self._contested = contested

    def tell_renewals(self, renewed: Callable[[str], None]) -> None:
        """Of every renewal, what it failed with, or "". To be set before the start."""
        self._renewed = renewed

    def change(self, timing: Timing, schedule: Schedule) -> None:
        """From now on with this patience and rhythm, and for the clouds that there are now."""
        before, self._schedule, self._timing = self._schedule, schedule, timing
        self._scheduler.pause()  # nothing new is done before it is ours to do
        for job in self._scheduler.get_jobs():
            rhythm = "renew_s" if job.id == LEASES else f"{job.id.partition(':')[0]}_s"
            seconds = getattr(schedule, rhythm, None)  # what was added has a rhythm of its own
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
        """To be called again and again, from outside of the schedule: that goes by the wall clock,
        and where it is set back, would stand still until it is as late again as it was."""
        before_s, self._wall_s = self._wall_s, _wall_s()
        back_s = before_s - self._wall_s
        if back_s < SET_BACK_S:
            self._wall_s = max(before_s, self._wall_s)  # many small steps are one
            return
        log.warning("the clock was set back", seconds=round(back_s, 1))
        for job in self._scheduler.get_jobs():
            job.modify(next_run_time=datetime.now(UTC))

    def stop(self, patience_s: float) -> bool:
        """Start nothing more and let what runs end; False when something still runs after
        `patience_s`. Another replica may go on at once."""
        with self._changed:
            self._stopping = True
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)
        with self._changed:
            ended = self._changed.wait_for(lambda: not self._running, patience_s)
        self._let_go(sorted(self._epochs))
        return ended

    def _let_go(self, duties: Iterable[str]) -> None:
        """Another replica may have them at once."""
        try:
            for duty in duties:
                self._store.take_duty(duty, self._holder, self._clock.now_us, 0)
        except StoreError as error:
            log.warning("the store does not answer", error=str(error))

    def _watch(self, name: str, provider: Provider) -> threading.Event:
        """Begin the duties of a cloud; set once it was asked for prices."""
        s, asked = self._schedule, threading.Event()
        self._watched[name] = provider
        self._scheduler.add_executor(ThreadPoolExecutor(CLOUD_THREADS), name)
        self._every(s.survey_s, f"survey:{name}", partial(self._survey.sweep, name), name)
        self._every(
            s.offers_s, f"offers:{name}", Quotes(provider, self._clock).refresh, name, asked
        )
        # Now as well: a daemon that dies again and again is there, and renews.
        now = threading.Event()
        self._every(s.expiry_s, f"expiry:{name}", partial(self._move_on, name), name, now)
        # And whoever asks for orphans should not be told for minutes that nobody has looked.
        clear_up = partial(self._survey.clear_up, name)
        self._every(s.leftovers_s, f"leftovers:{name}", clear_up, name, now)
        self._queues.setdefault(name, NoticeQueue(self._store, name, self._clock))
        self._every(s.notices_s, f"notices:{name}", partial(self._notices, name), name)
        return asked

    def _leave(self, name: str) -> None:
        """End the duties of a cloud; what is under way may end by itself."""
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
        """Take every duty that is free, and keep those that are ours. What cannot be asked for now
        stays as it was: the store refuses the writes of whoever was overtaken. One that is locked,
        for a write of ours is under way, keeps no other from its turn."""
        ttl_us, failed = int(self._schedule.lease_s * S), 0
        taken = self._store.take_duties(self._names, self._holder, self._clock.now_us, ttl_us)
        self._note_taken(taken)
        for duty in [duty for duty in self._names if duty not in taken]:
            try:
                epoch = self._store.take_duty(duty, self._holder, self._clock.now_us, ttl_us)
                self._note_taken({duty: epoch})
            except StoreUnavailableError as error:
                failed += 1
                if failed > LOCKED_AT_MOST:
                    raise
                log.info("a lease was not renewed", duty=duty, error=str(error))

    def _note_taken(self, taken: Mapping[str, int | None]) -> None:
        with self._changed:
            fresh = {duty for duty, epoch in taken.items() if epoch and duty not in self._epochs}
            for duty, epoch in taken.items():
                if epoch is None:
                    self._epochs.pop(duty, None)
                else:
                    self._epochs[duty] = epoch
        # At the start the lease may still have been that of a daemon that died.
        for job in self._scheduler.get_jobs() if fresh & self._prompt else ():
            if job.id in fresh & self._prompt:
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
        except LostDutyError:
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
        """No duty: what a cloud told a daemon that was overtaken meanwhile, or that only this one
        came upon, nobody else knows."""
        for queue in list(self._queues.values()):
            queue.record()
        self.remarks.tell()

    def _move_on(self, name: str, store: Store) -> None:
        provider, paged = self._providers[name], self._paged[name]
        renew_expiries(store, provider, self._clock, self._timing, paged)

    def _note_silent(self, store: Store) -> None:
        """Jobs whose nodes were not heard are due; the rules judge."""
        before_us = self._clock.now_us() - int(self._timing.suspect_after_s * S)
        store.note_silent(before_us)

    def _note_slow(self, store: Store) -> None:
        """Jobs that train slower than they did are due, and those whose machines another has the
        turn for; the rules judge again."""
        now_us = self._clock.now_us()
        found = givers(store.load_market(now_us), now_us)
        found += [
            job_id
            for job_id, (spec, samples) in store.recent_throughput(now_us).items()
            if slow(samples, spec, now_us)
        ]
        if found:
            store.note_jobs(found)

    def _prune(self, store: Store) -> None:
        rows = store.prune(self._clock.now_us() - int(self._schedule.keep_s * S))
        log.info("pruned", rows=rows)


def _wall_s() -> float:
    """How far the wall clock is ahead of the monotonic one, in seconds."""
    return datetime.now(UTC).timestamp() - time.monotonic()
