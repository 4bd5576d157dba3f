"""The sweep: terminate or hold listed machines that no row wants (planner/core/orphan_policy)."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import structlog

from providers.base import EXPIRES_TAG, Instance, InstanceState, Provider, ProviderError
from spotd.base.clock import Clock
from spotd.domain.events import Event, Severity
from spotd.domain.units import S
from spotd.planner.core.orphan_policy import (
    LIVE_TAG,
    DatabaseState,
    HeldMachine,
    Orphan,
    OrphanAction,
    OrphanDecision,
    judge,
)
from spotd.store.errors import StoreError
from spotd.store.interface import Store
from spotd.store.orphans import NodeRowTimes

log = structlog.get_logger(__name__)

REPEAT_S = 60.0  # between terminates of an orphan that is still listed
FRESH_S = 600.0  # what was held longer ago than this is known to nobody here
NAMED = 5  # machines that one message names
_LIVING = (InstanceState.PENDING, InstanceState.RUNNING, InstanceState.STOPPING)


class Sweep:
    """Sweeps the listings of one provider: a duty, done with its holder's fenced store."""

    def __init__(self, provider: Provider, clock: Clock) -> None:
        self._provider = provider
        self._clock = clock
        self._lock = threading.Lock()
        self._since_us: dict[str, int] = {}  # orphan -> first seen as one
        self._ending_us: dict[str, int] = {}  # orphan -> time of the last terminate call
        self._reported: set[str] = set()
        self._held: dict[str, HeldMachine] = {}
        self._swept_s: float | None = None  # when that was known, monotonic
        self._paged: set[str] = set()  # held, and an alert was sent
        self._untold: list[tuple[str, Event]] = []  # by job, oldest first

    def run(self, store: Store, listed: Sequence[Instance], orphans: Sequence[Instance]) -> None:
        """Judge the `orphans` of a listing. Raises StoreError, and LostDutyError before anything is
        ended if another daemon now holds the duty."""
        now_us = self._clock.now_us()
        verdicts = self._judge(store, listed, orphans, now_us)
        self._end(store, self._unchanged(self._overdue(orphans, verdicts, now_us)))
        self._page(orphans, verdicts)
        self._tell(store)

    def held(self) -> list[HeldMachine] | None:
        """Return the held machines of the last listing, longest held first.

        None if that is long ago: another box holds the task, or the cloud is unavailable.
        """
        with self._lock:
            swept_s = self._swept_s
            if swept_s is None or self._clock.monotonic_s() - swept_s > FRESH_S:
                return None
            return sorted(self._held.values(), key=lambda held: held.since_us)

    def _judge(
        self, store: Store, listed: Sequence[Instance], orphans: Sequence[Instance], now_us: int
    ) -> dict[str, OrphanDecision]:
        ids = {orphan.instance_id for orphan in orphans}
        with self._lock:
            self._since_us = {i: at for i, at in self._since_us.items() if i in ids}
            for instance_id in ids:
                self._since_us.setdefault(instance_id, now_us)
            since_us = dict(self._since_us)
        if not orphans:
            return {}
        known = store.orphans.known(self._provider.name, orphans)
        strays = [_stray(o, known.get(o.instance_id), since_us[o.instance_id]) for o in orphans]
        fleet = sum(instance.state in _LIVING for instance in listed)
        return judge(strays, fleet, record_of(store, self._provider.name, strays), now_us)

    def _overdue(
        self, orphans: Sequence[Instance], verdicts: Mapping[str, OrphanDecision], now_us: int
    ) -> list[Instance]:
        """Return the orphans to terminate, except those terminated just now."""
        with self._lock:
            # Listings recorded side by side come in any order: one that no longer has an orphan
            # must not make another one, taken earlier, forget the terminate call.
            self._ending_us = {
                i: at
                for i, at in self._ending_us.items()
                if i in verdicts or now_us - at < REPEAT_S * S
            }
            self._reported &= verdicts.keys() | self._ending_us.keys()
            overdue = [
                orphan
                for orphan in orphans
                if verdicts[orphan.instance_id].fate is OrphanAction.END
                and now_us - self._ending_us.get(orphan.instance_id, 0) >= REPEAT_S * S
            ]
            self._ending_us |= {orphan.instance_id: now_us for orphan in overdue}
            return overdue

    def _unchanged(self, overdue: Sequence[Instance]) -> list[Instance]:
        """Return those that a second listing of the cloud still shows unchanged.

        The decision does not apply to a machine that changed; the next listing covers the others.
        """
        if not overdue:
            return []
        try:
            again = {instance.instance_id: instance for instance in self._provider.list()}
        except ProviderError as error:
            log.warning("no second look", provider=self._provider.name, error=str(error))
            again = {}
        same = [one for one in overdue if owner(again.get(one.instance_id)) == owner(one)]
        with self._lock:
            for spared in {one.instance_id for one in overdue} - {one.instance_id for one in same}:
                log.warning("spared", provider=self._provider.name, instance=spared)
                self._ending_us.pop(spared, None)
        return same

    def _end(self, store: Store, overdue: Sequence[Instance]) -> None:
        """Terminate machines that no job needs.

        A failure is retried at the next listing, and delays neither the others nor the listing.
        """
        name = self._provider.name
        for at, orphan in enumerate(overdue):
            instance_id = orphan.instance_id
            try:
                store.leases.check(self._clock.now_us())
            except StoreError:
                with self._lock:
                    for spared in overdue[at:]:
                        self._ending_us.pop(spared.instance_id, None)
                raise
            log.warning("orphan", provider=name, instance=instance_id)
            try:
                self._provider.terminate(instance_id)
            except ProviderError as error:
                log.warning("orphan not ended", instance=instance_id, error=str(error))
                with self._lock:
                    self._ending_us.pop(instance_id, None)
                continue
            text = f"{instance_id} in {name}/{orphan.zone} belongs to no job: terminated"
            event = Event("orphan", text, severity=Severity.WARNING, alert=True)
            with self._lock:
                if instance_id not in self._reported:
                    self._reported.add(instance_id)
                    self._untold.append((orphan.tags.get("spotd-job", ""), event))

    def _page(self, orphans: Sequence[Instance], verdicts: Mapping[str, OrphanDecision]) -> None:
        """Alert once on all machines that are held from this listing on."""
        name, retained = self._provider.name, (OrphanAction.HOLD, OrphanAction.FOREIGN)
        with self._lock:
            self._swept_s = self._clock.monotonic_s()
            self._held = {
                orphan.instance_id: HeldMachine(
                    name,
                    orphan,
                    self._since_us.get(orphan.instance_id, 0),
                    verdict.fate,
                    verdict.why,
                )
                for orphan in orphans
                if (verdict := verdicts[orphan.instance_id]).fate in retained
            }
            self._paged &= self._held.keys()
            news = [held for i, held in sorted(self._held.items()) if i not in self._paged]
            self._paged |= {held.instance.instance_id for held in news}
            if news:
                self._untold.append(("", held_event(name, news)))

    def _tell(self, store: Store) -> None:
        """Record what was terminated. Raises StoreError; what was not recorded is tried next
        time."""
        while self._untold:
            with self._lock:
                untold, self._untold = self._untold[:1], self._untold[1:]
            try:
                for job_id, event in untold:
                    store.events.add(job_id, event, self._clock.now_us())
            except StoreError:
                with self._lock:
                    self._untold = untold + self._untold
                raise


def owner(instance: Instance | None) -> tuple[object, ...]:
    """Return the owner by the machine's own tags, without its expiry, which moves.

    Returns None for a machine that must no longer be terminated.
    """
    if instance is None or instance.state not in _LIVING:
        return ()
    tags = {name: text for name, text in instance.tags.items() if name != EXPIRES_TAG}
    return instance.token, tags


def held_event(provider: str, news: Sequence[HeldMachine]) -> Event:
    """Return one event about the machines that are held from now on."""
    ids = [held.instance.instance_id for held in news]
    named = ", ".join(ids[:NAMED]) + (f" and {len(ids) - NAMED} more" if len(ids) > NAMED else "")
    whys = dict.fromkeys(held.why for held in news)
    few = f"{len(ids)} machine{'s' if len(ids) > 1 else ''}"
    text = (
        f"{few} in {provider} that no job needs {'are' if len(ids) > 1 else 'is'} held, not ended: "
        f"{named}; {'; '.join(list(whys)[:NAMED])}. They cost money: see `spotctl orphans`, "
        "and end them with `spotctl orphans end`"
    )
    data = {"instances": ids}
    key = f"orphan_held/{provider}"  # a daemon that starts again and again is one message
    return Event("orphan_held", text, severity=Severity.ERROR, alert=True, key=key, data=data)


def record_of(store: Store, name: str, strays: Sequence[Orphan]) -> DatabaseState:
    """Return the database's state, and the generations of jobs that unknown orphans name.

    `name` is as in `OrphanRecords.release_orphans`.
    """
    named = {stray.job_id for stray in strays if not stray.known}
    jobs = {job_id: store.jobs.find(job_id) for job_id in named if job_id}
    return DatabaseState(
        deployment=store.deployment.id(),
        generations={i: job.generation for i, job in jobs.items() if job and job.id == i},
        released_at_us=store.orphans.released_us(name),
        quarantine=store.deployment.quarantine(),
    )


def _stray(instance: Instance, past: NodeRowTimes | None, seen_us: int) -> Orphan:
    """`past` is None when it never had a node. The grace of a closed row counts from its end,
    because a daemon that dies repeatedly forgets when it first saw the machine."""
    tags = instance.tags
    generation = tags.get("spotd-generation", "")
    return Orphan(
        instance_id=instance.instance_id,
        deployment=tags.get("spotd-deployment", ""),
        known=past is not None,
        since_us=min(past.gone_us or seen_us, seen_us) if past else seen_us,
        launched_at_us=instance.launched_at_us,
        ending=instance.state is InstanceState.STOPPING,
        condemned=past is not None and past.ended_us > 0,
        job_id=tags.get("spotd-job", ""),
        generation=int(generation) if generation.isdecimal() else 0,
        proof_until_us=instance.expires_at_us if LIVE_TAG in tags else 0,
    )
