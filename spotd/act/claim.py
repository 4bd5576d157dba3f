"""Detect a second database that claims the same deployment.

A copy of a database, restored beside the original or simply copied, has the same deployment and
knows the same machines: two daemons would each terminate the machines that the other launches, and
neither could detect it from its own data. So the deployment's store has an object with a number.
The daemon that holds this task regularly replaces the number by a higher one with compare-and-swap,
and its database records it: first as intended, then as confirmed. A number that is higher than the
recorded one, and not the intended one, was written by another database.

A daemon that finds such a number stops: it decides nothing, calls no cloud, and alerts. As long as
the number changes, the other daemon is alive. When it has not changed for long, the other is gone
and the deployment is taken over, in quarantine, because the other's launches are not known here.

A store that does not answer proves nothing and stops no daemon. Two databases that do not share the
store are not detected: a folder of this machine is copied with the database. If the deployment's
store is a folder, the object is in the checkpoint store, to which cloud machines write as well
(`daemon.startup.open_claim_store`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from providers.stores.base import ConflictError, NotFoundError, ObjectStore
from providers.stores.base import StoreError as ObjectStoreError
from spotd.base.clock import Clock
from spotd.store.errors import StoreError
from spotd.store.interface import Store

log = structlog.get_logger(__name__)

CHANCE = 32  # bits of a number, the lowest: two that count on from one do not meet
GONE_AFTER = 4  # rounds without a change, and the other is gone
NEWER = (
    "another spotd had this deployment with a later copy of the database, and is gone: what it "
    "launched is not known here"
)


@dataclass(frozen=True)
class _OtherDatabase:
    """The number of another database, its holder, and since when (monotonic) it has not changed."""

    number: int
    holder: str
    since_s: float


class DeploymentClaim:
    """The claim of one daemon. `chance()` returns a random integer; its lowest 32 bits count."""

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
        self._key = f"claims/{store.deployment.id()}"
        self._other: _OtherDatabase | None = None
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    def move(self, objects: ObjectStore) -> None:
        """Use another store for the claim after a reload."""
        self._objects = objects

    def why(self) -> str:
        """Return why this daemon must not act, or ""."""
        other = self._other
        if other is None:
            return ""
        return (
            f"{other.holder} uses another copy of this database for the same deployment: this "
            "spotd makes no changes. Stop one of the two for good; when that one is gone, this one "
            f"continues within {GONE_AFTER * self._every_s:.0f} s"
        )

    def watch(self, looked: threading.Event) -> None:
        """Check repeatedly until `stop`, starting now; set `looked` after the first check."""
        while True:
            try:
                self.look()
            except (StoreError, ObjectStoreError) as error:
                log.info("the owner of the deployment is unknown", error=str(error))
            looked.set()
            if self._stopping.wait(self._every_s):
                return

    def stop(self) -> None:
        """End `watch`."""
        self._stopping.set()

    def look(self) -> None:
        """Check the number. Raises StoreError and ObjectStoreError; then nothing is known."""
        before = self._store.deployment.claims()
        number, holder, _ = self._read()
        # Whoever has the duty may have written and recorded between the two.
        self._judge(number, holder, before, self._store.deployment.claims())

    def keep(self, store: Store) -> None:
        """Replace the number unless another living daemon's is there. Raises StoreError.

        This is the periodic task, with its holder's fenced store.
        """
        try:
            self._keep(store)
        except ConflictError:
            log.info("another spotd wrote the claim; the next check shows which")
        except ObjectStoreError as error:
            log.info("the claim could not be renewed", error=str(error))

    def _keep(self, store: Store) -> None:
        number, holder, tag = self._read()
        known = store.deployment.claims()
        other = self._judge(number, holder, known)
        if other is not None:
            if self._clock.monotonic_s() - other.since_s < GONE_AFTER * self._every_s:
                return
            store.deployment.set_quarantine(NEWER, self._clock.now_us())
        fresh = self._next(max(number, *known))
        # On record before it is written: a daemon that dies in between must know its own number.
        store.deployment.record_claim(max(number, known[0]), fresh)
        data = json.dumps({"number": fresh, "holder": self._holder}).encode()
        self._objects.put_if(self._key, data, tag)
        store.deployment.record_claim(fresh, fresh)
        with self._lock:
            self._other = None

    def _next(self, number: int) -> int:
        return ((number >> CHANCE) + 1 << CHANCE) | self._chance() % (1 << CHANCE)

    def _judge(self, number: int, holder: str, *known: tuple[int, int]) -> _OtherDatabase | None:
        """A lower number than ours is one that we left behind, in a folder that another box of
        this database does not have."""
        ours = any(number <= confirmed or number == intended for confirmed, intended in known)
        with self._lock:
            if ours:
                self._other = None
            elif self._other is None or self._other.number != number:
                self._other = _OtherDatabase(number, holder, self._clock.monotonic_s())
            return self._other

    def _read(self) -> tuple[int, str, str | None]:
        """(number, holder, version); (0, "", None) where there is none."""
        try:
            data, tag = self._objects.get(self._key)
        except NotFoundError:
            return 0, "", None
        try:
            document = json.loads(data)
            return _number(document["number"]), str(document["holder"])[:200], tag
        except (ValueError, KeyError, TypeError, RecursionError):
            return 0, "", tag  # nobody's: it is written anew


def _number(value: object) -> int:
    """Return the number. Raises ValueError for one that no database could hold."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(value)
    return value
