"""What the clouds say: listings, offers and their own notices, asked for and recorded.

Each duty is a function of (store, provider, clock); the daemon's schedule calls them, an effect may
ask for a listing out of turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

import structlog

from providers.base import (
    AuthError,
    Instance,
    Notice,
    OfferRequest,
    Provider,
    ProviderError,
    UnknownOutcome,
)
from spotd.clock import Clock
from spotd.model import Event, S, Severity
from spotd.store.base import Store, StoreError

log = structlog.get_logger(__name__)

# An instance that no node wants is ended only when it was seen so for this long: a create whose
# record is on its way must not be taken for an orphan.
ORPHAN_GRACE_S = 60.0
REPEAT_S = 60.0  # between terminates of an orphan that is still listed
PATIENCE_S = 30.0  # how long who shares a listing waits for it
AWAY_S = 30.0  # a cloud that has not answered for longer was away: so were its nodes, to us

Record = Callable[[], None]


class Survey:
    """Lists clouds, one call at a time per provider.

    Who asks while a listing is on its way shares the *next* one: only a listing that was asked for
    afterwards says anything about what the asker just did.

    What a listing says is an observation with a time of its own: any daemon may record one, and a
    newer one is not undone by it. To end what nobody wants is a duty, and its holder's alone.
    """

    def __init__(
        self,
        store: Store,
        providers: Mapping[str, Provider],
        clock: Clock,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._store = store
        self._lanes = {
            name: _Lane(_Listing(store, provider, clock), patience_s)
            for name, provider in providers.items()
        }

    def survey(self, provider: str) -> Record:
        """List `provider`; the result records it (once, whoever calls it). Raises ProviderError."""
        return self._lanes[provider].ask().observe

    def sweep(self, provider: str, store: Store) -> None:
        """List `provider`, record it, and end its orphans; `store` is fenced for the duty. Raises
        ProviderError and StoreError."""
        lane = self._lanes[provider]
        orphans = lane.ask().record(store)
        lane.listing.end(orphans, store)

    def silent(self, longer_than_s: float) -> dict[str, str]:
        """Providers that we have asked in vain for longer than that many seconds, and what to say
        of each."""
        silences = {name: lane.silence() for name, lane in self._lanes.items()}
        return {
            name: f"no answer for {silence_s:.0f} s{f': {error}' if error else ''}"
            for name, (silence_s, error) in silences.items()
            if silence_s > longer_than_s
        }

    def answering_since(self) -> dict[str, int]:
        """When each provider that was away answered again, us; 0 for one that never was."""
        return {name: lane.answering_since_us() for name, lane in self._lanes.items()}


class Answer:
    """One listing, asked for at `asked_at_us`."""

    def __init__(
        self,
        store: Store,
        provider: Provider,
        clock: Clock,
        instances: Sequence[Instance],
        asked_at_us: int,
    ) -> None:
        self._store = store
        self._provider = provider
        self._clock = clock
        self._instances = instances
        self._asked_at_us = asked_at_us
        self._lock = threading.Lock()
        self._orphans: Sequence[Instance] | None = None

    def observe(self) -> None:
        """Record it, as whoever happened to ask. Raises StoreError."""
        self.record(self._store)

    def record(self, store: Store) -> Sequence[Instance]:
        """Record it by `store`, once, whoever calls; the instances that no node wants. Raises
        StoreError."""
        with self._lock:
            if self._orphans is None:
                self._orphans = store.record_listing(
                    self._provider.name,
                    self._instances,
                    self._asked_at_us,
                    self._clock.now_us(),
                    self._provider.visibility_s,
                )
            return self._orphans


class _Lane:
    """Numbers the listings of one provider, so that each asker waits for the right one."""

    def __init__(self, listing: _Listing, patience_s: float) -> None:
        self.listing = listing
        self._patience_s = patience_s
        self._changed = threading.Condition()
        self._begun = 0
        self._ended = 0
        self._outcome: Answer | BaseException | None = None  # of the listing `_ended`

    def ask(self) -> Answer:
        """The outcome of a listing that begins after this call. Whoever finds nobody listing does
        it, for all who wait; nobody lists twice for the others' sake."""
        with self._changed:
            wanted = self._begun + 1
            free = self._changed.wait_for(
                lambda: self._ended >= wanted or self._begun == self._ended, self._patience_s
            )
            if not free:
                raise UnknownOutcome(f"the listing took longer than {self._patience_s:g} s")
            if self._ended >= wanted:
                return _told(self._outcome)
            self._begun += 1
        try:
            outcome: Answer | BaseException = self.listing.take()
        except BaseException as error:  # noqa: BLE001 - it reaches every asker, us included
            outcome = error
        with self._changed:
            self._ended, self._outcome = self._begun, outcome
            self._changed.notify_all()
        return _told(outcome)

    def silence(self) -> tuple[float, str]:
        """See _Listing.silence."""
        return self.listing.silence()

    def answering_since_us(self) -> int:
        """See Survey.answering_since."""
        return self.listing.answering_since_us


def _told(outcome: Answer | BaseException | None) -> Answer:
    if isinstance(outcome, BaseException):
        raise outcome
    if outcome is None:
        raise AssertionError("a listing that ended has an outcome")
    return outcome


class _Listing:
    """Takes the listings of one provider and ends its orphans."""

    def __init__(self, store: Store, provider: Provider, clock: Clock) -> None:
        self._store = store
        self._provider = provider
        self._clock = clock
        self._lock = threading.Lock()
        self._since_us: dict[str, int] = {}  # orphan -> first seen as one
        self._ending_us: dict[str, int] = {}  # orphan -> last told to end
        self._reported: set[str] = set()
        self._untold: list[tuple[str, Event]] = []  # by job, oldest first
        self._unanswered = (0, "")  # since when (us; 0: it answers), and the last error
        self.answering_since_us = 0  # when it last answered after it was away

    def take(self) -> Answer:
        """Ask now. A listing that fails is nothing. Raises ProviderError."""
        asked_at_us = self._clock.now_us()
        since_us, error = self._unanswered
        self._unanswered = (since_us or asked_at_us, error)
        try:
            instances = self._provider.list()
        except ProviderError as failed:
            self._unanswered = (since_us or asked_at_us, str(failed))
            raise
        if since_us and self._clock.now_us() - since_us > AWAY_S * S:
            self.answering_since_us = self._clock.now_us()
        self._unanswered = (0, "")
        return Answer(self._store, self._provider, self._clock, instances, asked_at_us)

    def silence(self) -> tuple[float, str]:
        """For how many seconds the cloud was asked in vain, and its last error; 0 when it answers.
        A call that hangs is asked in vain as well."""
        since_us, error = self._unanswered
        return ((self._clock.now_us() - since_us) / S if since_us else 0.0), error

    def end(self, orphans: Sequence[Instance], store: Store) -> None:
        """End those that are overdue, and tell. Raises StoreError; LostDutyError before anything is
        ended for a duty that is not ours any more."""
        overdue = self._overdue(orphans, self._clock.now_us())
        try:
            self._end(overdue, store)
        except StoreError:
            with self._lock:
                for orphan in overdue:
                    if orphan.instance_id not in self._reported:
                        self._ending_us.pop(orphan.instance_id, None)
            raise

    def _overdue(self, orphans: Sequence[Instance], now_us: int) -> list[Instance]:
        """Those that no node has wanted for the grace, and that were not told to end just now."""
        ids = {orphan.instance_id for orphan in orphans}
        with self._lock:
            self._since_us = {i: at for i, at in self._since_us.items() if i in ids}
            self._ending_us = {i: at for i, at in self._ending_us.items() if i in ids}
            self._reported &= ids
            for instance_id in ids:
                self._since_us.setdefault(instance_id, now_us)
            overdue = [
                orphan
                for orphan in orphans
                if now_us - self._since_us[orphan.instance_id] >= ORPHAN_GRACE_S * S
                and now_us - self._ending_us.get(orphan.instance_id, 0) >= REPEAT_S * S
            ]
            self._ending_us |= {orphan.instance_id: now_us for orphan in overdue}
            return overdue

    def _end(self, overdue: Sequence[Instance], store: Store) -> None:
        """Give back what nobody wants. One that cannot be ended is tried at the next listing, and
        keeps neither the others nor the listing from their turn."""
        name = self._provider.name
        for orphan in overdue:
            instance_id = orphan.instance_id
            store.hold_duty(self._clock.now_us())
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
        self._tell(store)

    def _tell(self, store: Store) -> None:
        """Put on record what was ended; what the store does not take is told with the next listing:
        nobody else knows of it. Raises StoreError."""
        while self._untold:
            with self._lock:
                untold, self._untold = self._untold[:1], self._untold[1:]
            try:
                for job_id, event in untold:
                    store.add_event(job_id, event, self._clock.now_us())
            except StoreError:
                with self._lock:
                    self._untold = untold + self._untold
                raise


def refresh_offers(store: Store, provider: Provider, clock: Clock) -> None:
    """Ask for everything on sale and record it. Failures are logged and leave the old offers.
    Raises StoreError."""
    try:
        offers = provider.offers(OfferRequest())
    except AuthError as error:
        store.record_provider(provider.name, str(error), clock.now_us())
        return
    except ProviderError as error:
        log.warning("offers", provider=provider.name, error=str(error))
        return
    store.record_offers(provider.name, offers, clock.now_us())
    store.record_provider(provider.name, "", clock.now_us())


def hear_notices(store: Store, provider: Provider, clock: Clock, untold: list[Notice]) -> None:
    """Ask the cloud's own queue of notices and record them. The queue tells each of them once:
    `untold` keeps, from call to call, those that the store did not take. Raises StoreError."""
    store.hold_duty(clock.now_us())  # another daemon would not be told them any more
    try:
        untold.extend(provider.notices())
    except ProviderError as error:
        log.warning("notices", provider=provider.name, error=str(error))
    if untold:
        store.record_cloud_notices(provider.name, untold, clock.now_us())
        untold.clear()
