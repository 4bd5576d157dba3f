"""What the clouds say: listings and their own notices, asked for and recorded. Prices: prices.py.

Each duty is a function of (store, provider, clock); the daemon's schedule calls them, an effect may
ask for a listing out of turn.
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
from spotd.clock import Clock
from spotd.decide.sweeping import Held, HeldLeftover
from spotd.model import S
from spotd.observe.images import ImageSweep
from spotd.observe.leftovers import LeftoverSweep
from spotd.observe.sweep import Sweep
from spotd.store.base import Store

log = structlog.get_logger(__name__)

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
        self._clock = clock
        self._patience_s = patience_s
        self._lanes: dict[str, _Lane] = {}
        self.change(providers)

    def change(self, providers: Mapping[str, Provider]) -> None:
        """From now on these clouds; what is known of those that stay is kept."""
        lanes = {}
        for name, provider in providers.items():
            lane = self._lanes.get(name)
            if lane is None or lane.listing.provider is not provider:
                listing = _Listing(self._store, provider, self._clock)
                lane = _Lane(listing, self._patience_s)
            lanes[name] = lane
        self._lanes = lanes

    def survey(self, provider: str) -> Record:
        """List `provider`; the result records it (once, whoever calls it). Raises ProviderError."""
        return self._lanes[provider].ask().observe

    def sweep(self, provider: str, store: Store) -> None:
        """List `provider`, record it, and end its orphans; `store` is fenced for the duty. Raises
        ProviderError and StoreError."""
        lane = self._lanes[provider]
        answer = lane.ask()
        orphans = answer.record(store)
        lane.listing.sweep.run(store, answer.instances, orphans)

    def clear_up(self, provider: str, store: Store) -> None:
        """Discard what machines left behind, and images that nobody wants; `store` is fenced for
        the duty. Raises ProviderError and StoreError."""
        listing = self._lanes[provider].listing
        try:
            listing.leftovers.run(store)
        finally:
            listing.images.run(store)

    def silent(self, longer_than_s: float) -> dict[str, str]:
        """Providers that we have asked in vain for longer than that many seconds, and what to say
        of each."""
        silences = {name: lane.silence() for name, lane in self._lanes.items()}
        return {
            name: f"no answer for {silence_s:.0f} s{f': {error}' if error else ''}"
            for name, (silence_s, error) in silences.items()
            if silence_s > longer_than_s
        }

    def held(self) -> list[Held]:
        """The machines that no node wants and that are not ended, as last seen."""
        return [held for lane in self._lanes.values() for held in lane.held() or ()]

    def held_leftovers(self) -> list[HeldLeftover]:
        """What machines left behind and is not discarded, as last seen."""
        return [held for lane in self._lanes.values() for held in lane.held_leftovers() or ()]

    def unswept(self) -> list[str]:
        """Providers of which we do not know one of the two: another box sweeps them, or nobody
        can."""
        lanes = self._lanes.items()
        return [n for n, lane in lanes if None in (lane.held(), lane.held_leftovers())]

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
        self.instances = instances
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

    def held(self) -> list[Held] | None:
        """See Sweep.held."""
        return self.listing.sweep.held()

    def held_leftovers(self) -> list[HeldLeftover] | None:
        """See LeftoverSweep.held."""
        return self.listing.leftovers.held()

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
    """Takes the listings of one provider, and has them and what is left behind swept.

    The cloud is asked first and the record read after that: what the record knows by then includes
    whoever was launched while the answer was on its way.
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
        """Ask now. A listing that fails is nothing. Raises ProviderError."""
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
        """For how many seconds the cloud was asked in vain, and its last error; 0 when it answers.
        A call that hangs is asked in vain as well."""
        since_us, error = self._unanswered
        return ((self._clock.now_us() - since_us) / S if since_us else 0.0), error


class NoticeQueue:
    """A cloud's own queue of notices. It tells each of them once, to whoever asks: to ask is a
    duty, and its holder's alone. What it told is an observation like a listing: any daemon may
    record it, overtaken or not. It is kept until the store has taken it."""

    def __init__(self, store: Store, name: str, clock: Clock) -> None:
        self._store = store
        self._name = name
        self._clock = clock
        self._lock = threading.Lock()
        self._untold: list[Notice] = []

    def hear(self, store: Store, provider: Provider) -> None:
        """Ask, and record what is told; `store` is fenced for the duty. Raises StoreError."""
        store.hold_duty(self._clock.now_us())  # another daemon would not be told them any more
        try:
            notices = provider.notices()
        except ProviderError as error:
            log.warning("notices", provider=self._name, error=str(error))
            notices = []
        with self._lock:
            self._untold.extend(notices)
        self.record()

    def record(self) -> None:
        """Record what the store did not take before. Raises StoreError."""
        with self._lock:
            if self._untold:
                self._store.record_cloud_notices(self._name, self._untold, self._clock.now_us())
                self._untold = []
