"""The sweep of leftovers: disks, addresses and cards that are attached to no machine.

The rules are those of orphans (planner/core/orphan_policy.py): a leftover of a node that is gone is
discarded after a grace period; one that the record never requested is held, with an alert. Many at
once are not a reason to stop, because nothing uses them. A resource of a node that is not gone is
about to be attached, or was until now.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog

from providers.base import Leftover, Provider, ProviderError
from spotd.base.clock import Clock
from spotd.domain.events import Event, Severity
from spotd.observe.sweep import record_of
from spotd.planner.core.orphan_policy import (
    HeldLeftover,
    Orphan,
    OrphanAction,
    OrphanDecision,
    judge,
    leftovers_of,
)
from spotd.store.interface import Store
from spotd.store.orphans import NodeRowTimes

log = structlog.get_logger(__name__)

NAMED = 5  # leftovers that one message names
FRESH_S = 900.0  # what was held longer ago than this is known to nobody here


@dataclass(frozen=True)
class _Owner:
    """The machine of a leftover, as the store looks it up."""

    instance_id: str
    token: str


class LeftoverSweep:
    """The periodic task of one provider, with its holder's fenced store."""

    def __init__(self, provider: Provider, clock: Clock) -> None:
        self._provider = provider
        self._clock = clock
        self._lock = threading.Lock()
        self._since_us: dict[str, int] = {}  # leftover -> first seen as one
        self._held: dict[str, HeldLeftover] = {}
        self._looked_s: float | None = None  # when that was known, monotonic
        self._paged: set[str] = set()  # held, and an alert was sent

    def run(self, store: Store) -> None:
        """Sweep once.

        Raises ProviderError, StoreError, and LostLeaseError before anything is done.
        """
        left = self._provider.leftovers()
        now_us = self._clock.now_us()
        with self._lock:
            known = {one.leftover_id for one in left}
            self._since_us = {i: at for i, at in self._since_us.items() if i in known}
            for ident in known:
                self._since_us.setdefault(ident, now_us)
            self._paged &= known
        verdicts = self._judge(store, left, now_us)
        gone = [one for one in left if verdicts[one.leftover_id].fate is OrphanAction.END]
        self._discard(store, gone)
        self._keep(left, verdicts)
        self._page(store)

    def held(self) -> list[HeldLeftover] | None:
        """Return the held leftovers of the last sweep, longest held first.

        None if that is long ago: another box holds the task, or the cloud is unavailable.
        """
        with self._lock:
            looked_s = self._looked_s
            if looked_s is None or self._clock.monotonic_s() - looked_s > FRESH_S:
                return None
            return sorted(self._held.values(), key=lambda held: held.since_us)

    def _judge(
        self, store: Store, left: Sequence[Leftover], now_us: int
    ) -> dict[str, OrphanDecision]:
        if not left:
            return {}
        owners = [_Owner(one.leftover_id, one.tags.get("spotd-token", "")) for one in left]
        known = store.orphans.known(self._provider.name, owners)
        strays = [
            _stray(one, known.get(one.leftover_id), self._since_us[one.leftover_id])
            for one in left
            if one.leftover_id not in known or known[one.leftover_id].gone_us
        ]
        record = record_of(store, leftovers_of(self._provider.name), strays)
        verdicts = {one.leftover_id: OrphanDecision(OrphanAction.WAIT) for one in left}
        for stray in strays:
            verdicts |= judge([stray], 1, record, now_us)
        return verdicts

    def _discard(self, store: Store, left: Sequence[Leftover]) -> None:
        """Delete leftovers. A failure is retried next time and delays no other."""
        done: list[Leftover] = []
        for one in left:
            store.leases.check(self._clock.now_us())
            try:
                self._provider.discard(one.leftover_id)
            except ProviderError as error:
                log.warning("leftover not discarded", leftover=one.leftover_id, error=str(error))
            else:
                done.append(one)
        if done:
            text = f"left behind in {self._provider.name} by machines that are gone, and discarded"
            event = Event("leftovers", f"{text}: {_named(done)}", severity=Severity.WARNING)
            store.events.add("", event, self._clock.now_us())

    def _keep(self, left: Sequence[Leftover], verdicts: Mapping[str, OrphanDecision]) -> None:
        """Remember the held leftovers."""
        name, retained = self._provider.name, (OrphanAction.HOLD, OrphanAction.FOREIGN)
        with self._lock:
            self._looked_s = self._clock.monotonic_s()
            self._held = {
                one.leftover_id: HeldLeftover(
                    name, one, self._since_us[one.leftover_id], verdict.fate, verdict.why
                )
                for one in left
                if (verdict := verdicts[one.leftover_id]).fate in retained
            }

    def _page(self, store: Store) -> None:
        """Alert once on each held leftover."""
        with self._lock:
            news = [held for i, held in sorted(self._held.items()) if i not in self._paged]
        if not news:
            return
        name = self._provider.name
        whys = dict.fromkeys(held.why for held in news)
        text = (
            f"left behind in {name}, and held, not discarded: "
            f"{_named([held.leftover for held in news])}; {'; '.join(list(whys)[:NAMED])}. They "
            "may cost money: see `spotctl orphans`, and delete them with `spotctl orphans end`"
        )
        key = f"leftovers_held/{name}"
        event = Event("leftovers_held", text, severity=Severity.WARNING, alert=True, key=key)
        store.events.add("", event, self._clock.now_us())
        self._paged |= {held.leftover.leftover_id for held in news}


def _named(left: Sequence[Leftover]) -> str:
    words = [f"{one.kind.value} {one.leftover_id}" for one in left[:NAMED]]
    more = f" and {len(left) - NAMED} more" if len(left) > NAMED else ""
    return ", ".join(words) + more


def _stray(one: Leftover, past: NodeRowTimes | None, seen_us: int) -> Orphan:
    """Return the leftover as an orphan.

    Its grace begins when it was first seen, because its cloud may delete it by itself.
    """
    generation = one.tags.get("spotd-generation", "")
    return Orphan(
        instance_id=one.leftover_id,
        deployment=one.tags.get("spotd-deployment", ""),
        known=past is not None,
        since_us=seen_us,
        launched_at_us=one.since_us,
        job_id=one.tags.get("spotd-job", ""),
        generation=int(generation) if generation.isdecimal() else 0,
    )
