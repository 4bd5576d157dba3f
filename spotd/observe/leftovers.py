"""The sweep of what machines leave behind: disks, addresses and cards that hang on no machine.

The rules are those of machines that nobody wants (decide/sweeping.py): what belongs to a node that
is gone is discarded after a grace; what the record never asked for is held, and a person told. A
crowd is no reason to stop: what hangs on no machine takes nothing from any. What belongs to a node
that is not gone is about to hang on its machine, or did until now.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog

from providers.base import Leftover, Provider, ProviderError
from spotd.clock import Clock
from spotd.decide.sweeping import Fate, HeldLeftover, Stray, Verdict, judge, leftovers_of
from spotd.model import Event, Severity
from spotd.observe.sweep import record_of
from spotd.store.base import Store
from spotd.store.leaks import Past

log = structlog.get_logger(__name__)

NAMED = 5  # leftovers that one message names
FRESH_S = 900.0  # what was held longer ago than this is known to nobody here


@dataclass(frozen=True)
class _Owner:
    """Whose machine it was, as the store asks for it."""

    instance_id: str
    token: str


class LeftoverSweep:
    """Of one provider: a duty, done with its holder's fenced store."""

    def __init__(self, provider: Provider, clock: Clock) -> None:
        self._provider = provider
        self._clock = clock
        self._lock = threading.Lock()
        self._since_us: dict[str, int] = {}  # leftover -> first seen as one
        self._held: dict[str, HeldLeftover] = {}
        self._looked_s: float | None = None  # when that was known, monotonic
        self._paged: set[str] = set()  # held, and a person was told

    def run(self, store: Store) -> None:
        """One look. Raises ProviderError and StoreError; LostDutyError before anything is done for
        a duty that is not ours any more."""
        left = self._provider.leftovers()
        now_us = self._clock.now_us()
        with self._lock:
            known = {one.leftover_id for one in left}
            self._since_us = {i: at for i, at in self._since_us.items() if i in known}
            for ident in known:
                self._since_us.setdefault(ident, now_us)
            self._paged &= known
        verdicts = self._judge(store, left, now_us)
        gone = [one for one in left if verdicts[one.leftover_id].fate is Fate.END]
        self._discard(store, gone)
        self._keep(left, verdicts)
        self._page(store)

    def held(self) -> list[HeldLeftover] | None:
        """Those of the last look, longest held first; None when that is long ago: another box has
        the duty, or the cloud is away."""
        with self._lock:
            looked_s = self._looked_s
            if looked_s is None or self._clock.monotonic_s() - looked_s > FRESH_S:
                return None
            return sorted(self._held.values(), key=lambda held: held.since_us)

    def _judge(self, store: Store, left: Sequence[Leftover], now_us: int) -> dict[str, Verdict]:
        if not left:
            return {}
        owners = [_Owner(one.leftover_id, one.tags.get("spotd-token", "")) for one in left]
        known = store.asked_for(self._provider.name, owners)
        strays = [
            _stray(one, known.get(one.leftover_id), self._since_us[one.leftover_id])
            for one in left
            if one.leftover_id not in known or known[one.leftover_id].gone_us
        ]
        record = record_of(store, leftovers_of(self._provider.name), strays)
        verdicts = {one.leftover_id: Verdict(Fate.WAIT) for one in left}
        for stray in strays:
            verdicts |= judge([stray], 1, record, now_us)
        return verdicts

    def _discard(self, store: Store, left: Sequence[Leftover]) -> None:
        """One that cannot be deleted is tried at the next look, and keeps no other waiting."""
        done: list[Leftover] = []
        for one in left:
            store.hold_duty(self._clock.now_us())
            try:
                self._provider.discard(one.leftover_id)
            except ProviderError as error:
                log.warning("leftover not discarded", leftover=one.leftover_id, error=str(error))
            else:
                done.append(one)
        if done:
            text = f"left behind in {self._provider.name} by machines that are gone, and discarded"
            event = Event("leftovers", f"{text}: {_named(done)}", severity=Severity.WARNING)
            store.add_event("", event, self._clock.now_us())

    def _keep(self, left: Sequence[Leftover], verdicts: Mapping[str, Verdict]) -> None:
        """What is held, for whoever asks."""
        name, kept = self._provider.name, (Fate.HOLD, Fate.FOREIGN)
        with self._lock:
            self._looked_s = self._clock.monotonic_s()
            self._held = {
                one.leftover_id: HeldLeftover(
                    name, one, self._since_us[one.leftover_id], verdict.fate, verdict.why
                )
                for one in left
                if (verdict := verdicts[one.leftover_id]).fate in kept
            }

    def _page(self, store: Store) -> None:
        """Tell of what is held, once."""
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
        store.add_event("", event, self._clock.now_us())
        self._paged |= {held.leftover.leftover_id for held in news}


def _named(left: Sequence[Leftover]) -> str:
    words = [f"{one.kind.value} {one.leftover_id}" for one in left[:NAMED]]
    more = f" and {len(left) - NAMED} more" if len(left) > NAMED else ""
    return ", ".join(words) + more


def _stray(one: Leftover, past: Past | None, seen_us: int) -> Stray:
    """Its grace begins when it was first seen: its cloud may be about to clear up by itself."""
    generation = one.tags.get("spotd-generation", "")
    return Stray(
        instance_id=one.leftover_id,
        deployment=one.tags.get("spotd-deployment", ""),
        known=past is not None,
        since_us=seen_us,
        launched_at_us=one.since_us,
        job_id=one.tags.get("spotd-job", ""),
        generation=int(generation) if generation.isdecimal() else 0,
    )
