"""Fetch and record clouds' listings and their own notices. prices.py has the prices.

Each task is a function of (store, provider, clock). The daemon's schedule calls them; an effect may
request a listing out of turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

import structlog

from providers.base import (
    Instance,
    Notice,
    Provider,
    ProviderError,
    UnknownOutcome,
)
from spotd.base.clock import Clock
from spotd.domain.units import S
from spotd.observe.images import ImageSweep
from spotd.observe.leftovers import LeftoverSweep
from spotd.observe.sweep import Sweep
from spotd.planner.core.orphan_policy import HeldLeftover, HeldMachine
from spotd.store.interface import Store

log = structlog.get_logger(__name__)

PATIENCE_S = 30.0  # how long who shares a listing waits for it
AWAY_S = 30.0  # a cloud that has not answered for longer was away: so were its nodes, to us

Record = Callable[[], None]


class InstanceSurvey:
    """Lists clouds, one call at a time per provider.

    A caller that arrives during a listing shares the *next* one, because only a later listing
    reflects the caller's last action. A listing is an observation with its own time: any daemon may
    record one, and it does not undo a newer one. Terminating orphans is a periodic task of the
    holder alone.
    """

    def __init__(
        self,
        store: Store,
        providers: Mapping[str, Provider],
        clock: Clock,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._store = store
        self._clock = clock
        self._patience_s = patience_s
        self._lanes: dict[str, _Lane] = {}
        self.change(providers)

    def change(self, providers: Mapping[str, Provider]) -> None:
        """Use new providers; the state of unchanged ones stays."""
        lanes = {}
        for name, provider in providers.items():
            lane = self._lanes.get(name)
            if lane is None or lane.listing.provider is not provider:
                listing = _Listing(self._store, provider, self._clock)
                lane = _Lane(listing, self._patience_s)
            lanes[name] = lane
        self._lanes = lanes

    def survey(self, provider: str) -> Record:
        """List `provider`.

        The result records the listing once, whoever calls it. Raises ProviderError.
        """
        return self._lanes[provider].ask().observe

    def sweep(self, provider: str, store: Store) -> None:
        """List `provider`, record it, and end its orphans; `store` is fenced for the duty. Raises
        ProviderError and StoreError."""
        lane = self._lanes[provider]
        answer = lane.ask()
        orphans = answer.record(store)
        lane.listing.sweep.run(store, answer.instances, orphans)

    def clear_up(self, provider: str, store: Store) -> None:
        """Discard leftovers and unwanted images. Raises ProviderError and StoreError.

        `store` is fenced for the task.
        """
        listing = self._lanes[provider].listing
        try:
            listing.leftovers.run(store)
        finally:
            listing.images.run(store)

    def silent(self, longer_than_s: float) -> dict[str, str]:
        """Return providers that have not answered for longer than that, each with a message."""
        silences = {name: lane.silence() for name, lane in self._lanes.items()}
        return {
            name: f"no answer for {silence_s:.0f} s{f': {error}' if error else ''}"
            for name, (silence_s, error) in silences.items()
            if silence_s > longer_than_s
        }

    def held(self) -> list[HeldMachine]:
        """Return the held machines as last seen."""
        return [held for lane in self._lanes.values() for held in lane.held() or ()]

    def held_leftovers(self) -> list[HeldLeftover]:
        """Return the held leftovers as last seen."""
        return [held for lane in self._lanes.values() for held in lane.held_leftovers() or ()]

    def unswept(self) -> list[str]:
        """Return providers whose held machines or leftovers are unknown here.

        Another box sweeps them, or no box can.
        """
        lanes = self._lanes.items()
        return [n for n, lane in lanes if None in (lane.held(), lane.held_leftovers())]

    def answering_since(self) -> dict[str, int]:
        """Return when each provider answered again, in microseconds; 0 if it never failed."""
        return {name: lane.answering_since_us() for name, lane in self._lanes.items()}


class Answer:
    """One listing, requested at `asked_at_us`."""

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
        self.instances = instances
        self._asked_at_us = asked_at_us
        self._lock = threading.Lock()
        self._orphans: Sequence[Instance] | None = None

    def observe(self) -> None:
        """Record the listing as any caller. Raises StoreError."""
        self.record(self._store)

    def record(self, store: Store) -> Sequence[Instance]:
        """Record the listing by `store`, once, and return the orphans. Raises StoreError."""
        with self._lock:
            if self._orphans is None:
                self._orphans = store.instances.record_listing(
                    self._provider.name,
                    self.instances,
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
        """Return the outcome of a listing that begins after this call.

        A caller that finds no listing in progress makes it for all who wait; no caller lists twice
        for others.
        """
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

    def held(self) -> list[HeldMachine] | None:
        """See Sweep.held."""
        return self.listing.sweep.held()

    def held_leftovers(self) -> list[HeldLeftover] | None:
        """See LeftoverSweep.held."""
        return self.listing.leftovers.held()

    def answering_since_us(self) -> int:
        """See InstanceSurvey.answering_since."""
        return self.listing.answering_since_us


def _told(outcome: Answer | BaseException | None) -> Answer:
    if isinstance(outcome, BaseException):
        raise outcome
    if outcome is None:
        raise AssertionError("a listing that ended has an outcome")
    return outcome


class _Listing:
    """Lists one provider, and passes the machines and leftovers to the sweep.

    The cloud is listed first and the record read after that, so that the record includes machines
    launched while the answer was on its way.
    """

    def __init__(self, store: Store, provider: Provider, clock: Clock) -> None:
        self._store = store
        self.provider = provider
        self._clock = clock
        self.sweep = Sweep(provider, clock)
        self.leftovers = LeftoverSweep(provider, clock)
        self.images = ImageSweep(provider, clock)
        self._unanswered = (0, "")  # since when (us; 0: it answers), and the last error
        self.answering_since_us = 0  # when it last answered after it was away

    def take(self) -> Answer:
        """List now. A failed listing has no effect. Raises ProviderError."""
        asked_at_us = self._clock.now_us()
        since_us, error = self._unanswered
        self._unanswered = (since_us or asked_at_us, error)
        try:
            instances = self.provider.list()
        except ProviderError as failed:
            self._unanswered = (since_us or asked_at_us, str(failed))
            raise
        if since_us and self._clock.now_us() - since_us > AWAY_S * S:
            self.answering_since_us = self._clock.now_us()
        self._unanswered = (0, "")
        return Answer(self._store, self.provider, self._clock, instances, asked_at_us)

    def silence(self) -> tuple[float, str]:
        """Return for how many seconds the cloud has not answered, and its last error; 0 if it
        answers.

        A call that hangs counts.
        """
        since_us, error = self._unanswered
        return ((self._clock.now_us() - since_us) / S if since_us else 0.0), error


class NoticeQueue:
    """A cloud's own queue of notices, which reports each notice once.

    Reading it is a periodic task of the holder alone. What was read is an observation: any daemon
    may record it, overtaken or not. It is retained until the store has accepted it.
    """

    def __init__(self, store: Store, name: str, clock: Clock) -> None:
        self._store = store
        self._name = name
        self._clock = clock
        self._lock = threading.Lock()
        self._untold: list[Notice] = []

    def hear(self, store: Store, provider: Provider) -> None:
        """Read the queue and record the notices.

        Raises StoreError. `store` is fenced for the task.
        """
        store.leases.check(self._clock.now_us())  # another daemon would not receive them any more
        try:
            notices = provider.notices()
        except ProviderError as error:
            log.warning("notices", provider=self._name, error=str(error))
            notices = []
        with self._lock:
            self._untold.extend(notices)
        self.record()

    def record(self) -> None:
        """Record observations that the store did not accept before. Raises StoreError."""
        with self._lock:
            if self._untold:
                self._store.instances.record_notices(self._name, self._untold, self._clock.now_us())
                self._untold = []
