"""The periodic duties: list the clouds, refresh prices, deliver alerts, look for silence, prune.

Each holds a lease, so that one replica does it at a time; APScheduler says when.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import structlog
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from providers.base import Notice, Provider, ProviderError
from spotd.clock import Clock
from spotd.decide.health import slow
from spotd.model import S, Timing
from spotd.observe.clouds import Survey, hear_notices, refresh_offers
from spotd.store.base import Store, StoreError

log = structlog.get_logger(__name__)

OWN = "_own"  # (no name of a provider) the line of duties that ask no cloud
OWN_THREADS = 4
CLOUD_THREADS = 2  # of each cloud: one that hangs keeps its own duties waiting, and no others
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
    prune_s: float = 3600.0
    keep_s: float = 90 * 86_400.0  # history older than this is pruned


class Duties:
    """Starts and stops the schedule. `deliver(epoch)` sends due alerts."""

    def __init__(
        self,
        store: Store,
        providers: Mapping[str, Provider],
        survey: Survey,
        deliver: Callable[[int], None],
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
        self._more: list[tuple[float, str, Callable[[], object]]] = []
        self._changed = threading.Condition()
        self._stopping = False
        self._running = 0
        self._wall_s = _wall_s()
        self._held: set[str] = set()
        self._untold: dict[str, list[Notice]] = {name: [] for name in providers}
        lines = {name: ThreadPoolExecutor(CLOUD_THREADS) for name in providers}
        self._scheduler = BackgroundScheduler(
            executors={OWN: ThreadPoolExecutor(OWN_THREADS), **lines},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": 60},
        )

    def start(self) -> None:
        """Ask for prices, then keep to the schedule. A cloud that does not answer holds up nobody
        for long."""
        s = self._schedule
        asked = {name: threading.Event() for name in self._providers}
        for name, done in asked.items():
            self._every(s.survey_s, f"survey:{name}", partial(self._list, name), name)
            self._every(s.offers_s, f"offers:{name}", partial(self._offers, name), name, done)
            self._every(s.notices_s, f"notices:{name}", partial(self._notices, name), name)
        self._every(s.alerts_s, "alerts", self._deliver)
        self._every(s.silence_s, "silence", self._note_silent)
        self._every(s.health_s, "health", self._note_slow)
        for seconds, duty, run in self._more:
            self._every(seconds, duty, partial(_without_epoch, run))
        self._every(s.prune_s, "prune", self._prune)
        self._scheduler.start()
        end_s = time.monotonic() + FIRST_OFFERS_S
        for done in asked.values():
            done.wait(max(end_s - time.monotonic(), 0.0))

    def add(self, seconds: float, duty: str, run: Callable[[], object]) -> None:
        """One more duty, before the start: `run()` each `seconds`, by one replica."""
        self._more.append((seconds, duty, run))

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
        try:
            for duty in sorted(self._held):
                self._store.take_duty(duty, self._holder, self._clock.now_us(), 0)
        except StoreError as error:
            log.warning("the store does not answer", error=str(error))
        return ended

    def _every(
        self,
        seconds: float,
        duty: str,
        run: Callable[[int], None],
        line: str = OWN,
        at_once: threading.Event | None = None,
    ) -> None:
        """Run `run(epoch)` each `seconds` while we hold the duty's lease. With `at_once` also now,
        lease or not (who holds it may be a daemon that died), and then set that."""

        def held() -> None:
            ttl_us = int(max(3 * seconds, 30) * S)
            epoch = self._store.take_duty(duty, self._holder, self._clock.now_us(), ttl_us)
            if epoch is not None:
                self._held.add(duty)
                run(epoch)
            elif at_once is not None and not at_once.is_set():
                run(0)

        def guarded() -> None:
            self._guarded(duty, held)
            if at_once is not None:
                at_once.set()

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

    def _list(self, name: str, _epoch: int) -> None:
        self._survey.survey(name)()

    def _offers(self, name: str, _epoch: int) -> None:
        refresh_offers(self._store, self._providers[name], self._clock)

    def _notices(self, name: str, _epoch: int) -> None:
        hear_notices(self._store, self._providers[name], self._clock, self._untold[name])

    def _note_silent(self, _epoch: int) -> None:
        """Jobs whose nodes were not heard are due; the rules judge."""
        before_us = self._clock.now_us() - int(self._timing.suspect_after_s * S)
        self._store.note_silent(before_us)

    def _note_slow(self, _epoch: int) -> None:
        """Jobs that train slower than they did are due; the rules judge again."""
        now_us = self._clock.now_us()
        found = [
            job_id
            for job_id, (spec, samples) in self._store.recent_throughput(now_us).items()
            if slow(samples, spec, now_us)
        ]
        if found:
            self._store.note_jobs(found)

    def _prune(self, _epoch: int) -> None:
        rows = self._store.prune(self._clock.now_us() - int(self._schedule.keep_s * S))
        log.info("pruned", rows=rows)


def _without_epoch(run: Callable[[], object], _epoch: int) -> None:
    run()


def _wall_s() -> float:
    """How far the wall clock is ahead of the monotonic one, in seconds."""
    return datetime.now(UTC).timestamp() - time.monotonic()
