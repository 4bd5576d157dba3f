"""Which database a deployment belongs to, where two say that it is theirs.

A copy of a database, restored beside the original or simply copied, has the same deployment, and
knows the same machines as its own: two daemons would each end what the other launches, and neither
could tell from what it has. What tells them apart is what only one of them did last. In the
deployment's store lies an object with a number. The daemon that has the duty replaces it every
while by a higher one, by compare-and-swap, and its database knows it: first as what is about to be
written, then as what was. A number that is higher than what a database knows, and is not the one
that it was about to write, was written with another one.

Who finds such a number stands still: it decides nothing, calls no cloud, and tells a person. As
long as the number changes, the other lives. When it has not changed for long, the other is gone,
and the deployment is taken over; what the other launched is not known here, so in quarantine.

A store that does not answer proves nothing, and stops nobody. Nor are two found out that do not
share it: a folder of this machine is copied with the database. Where the deployment's store is one,
the object lies in the store of checkpoints, which clouds' machines write to as well
(`beginning.open_claim_store`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from providers.stores.base import ConflictError, NotFoundError, ObjectStore
from providers.stores.base import StoreError as ObjectStoreError
from spotd.clock import Clock
from spotd.store.base import Store, StoreError

log = structlog.get_logger(__name__)

CHANCE = 32  # bits of a number, the lowest: two that count on from one do not meet
GONE_AFTER = 4  # rounds without a change, and the other is gone
NEWER = (
    "another spotd had this deployment with a later copy of the database, and is gone: what it "
    "launched is not known here"
)


@dataclass(frozen=True)
class _Other:
    """The number of another database, by whom, and since when (monotonic) it has not changed."""

    number: int
    holder: str
    since_s: float


class Claim:
    """Of one daemon. `chance()` is a whole number, of which the lowest 32 bits count."""

    def __init__(
        self,
        store: Store,
        objects: ObjectStore,
        clock: Clock,
        holder: str,
        chance: Callable[[], int],
        every_s: float,
    ) -> None:
        self._store = store
        self._objects = objects
        self._clock = clock
        self._holder = holder
        self._chance = chance
        self._every_s = every_s
        self._key = f"claims/{store.deployment()}"
        self._other: _Other | None = None
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    def move(self, objects: ObjectStore) -> None:
        """From now on it is claimed there: the configuration was read anew."""
        self._objects = objects

    def why(self) -> str:
        """Why this daemon stands still; "" when it does not."""
        other = self._other
        if other is None:
            return ""
        return (
            f"{other.holder} uses another copy of this database for the same deployment: this "
            "spotd stands still. Stop one of the two for good; when that one is gone, this one "
            f"goes on within {GONE_AFTER * self._every_s:.0f} s"
        )

    def watch(self, looked: threading.Event) -> None:
        """Look again and again until `stop`, beginning now; sets `looked` after the first time."""
        while True:
            try:
                self.look()
            except (StoreError, ObjectStoreError) as error:
                log.info("whose the deployment is, is not known", error=str(error))
            looked.set()
            if self._stopping.wait(self._every_s):
                return

    def stop(self) -> None:
        """End `watch`."""
        self._stopping.set()

    def look(self) -> None:
        """Whose number is there? Raises StoreError and ObjectStoreError; then nothing is known."""
        before = self._store.claims()
        number, holder, _ = self._read()
        # Whoever has the duty may have written and recorded between the two.
        self._judge(number, holder, before, self._store.claims())

    def keep(self, store: Store) -> None:
        """Replace the number, unless another's stands there that may live: the duty, with its
        holder's fenced store. Raises StoreError."""
        try:
            self._keep(store)
        except ConflictError:
            log.info("somebody else wrote the claim; the next look tells who")
        except ObjectStoreError as error:
            log.info("the claim could not be kept", error=str(error))

    def _keep(self, store: Store) -> None:
        number, holder, tag = self._read()
        known = store.claims()
        other = self._judge(number, holder, known)
        if other is not None:
            if self._clock.monotonic_s() - other.since_s < GONE_AFTER * self._every_s:
                return
            store.set_quarantine(NEWER, self._clock.now_us())
        fresh = self._next(max(number, *known))
        # On record before it is written: a daemon that dies in between must know its own number.
        store.record_claim(max(number, known[0]), fresh)
        data = json.dumps({"number": fresh, "holder": self._holder}).encode()
        self._objects.put_if(self._key, data, tag)
        store.record_claim(fresh, fresh)
        with self._lock:
            self._other = None

    def _next(self, number: int) -> int:
        return ((number >> CHANCE) + 1 << CHANCE) | self._chance() % (1 << CHANCE)

    def _judge(self, number: int, holder: str, *known: tuple[int, int]) -> _Other | None:
        """A lower number than ours is one that we left behind, in a folder that another box of
        this database does not have."""
        ours = any(number <= confirmed or number == intended for confirmed, intended in known)
        with self._lock:
            if ours:
                self._other = None
            elif self._other is None or self._other.number != number:
                self._other = _Other(number, holder, self._clock.monotonic_s())
            return self._other

    def _read(self) -> tuple[int, str, str | None]:
        """(number, holder, version); (0, "", None) where there is none."""
        try:
            data, tag = self._objects.get(self._key)
        except NotFoundError:
            return 0, "", None
        try:
            found = json.loads(data)
            return _number(found["number"]), str(found["holder"])[:200], tag
        except (ValueError, KeyError, TypeError, RecursionError):
            return 0, "", tag  # nobody's: it is written anew


def _number(value: object) -> int:
    """Raises ValueError for what is none that a database could keep."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(value)
    return value
