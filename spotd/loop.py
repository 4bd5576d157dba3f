"""The reconcile loop: claim what is due, decide about each, wait for the next moment or a hint."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from spotd.act.effects import World
from spotd.model import (
    Timing,
)
from spotd.plan import (
    Effect,
)
from spotd.reconcile import claim_due, drain, one_effect, one_pass
from spotd.store.base import StoreError

log = structlog.get_logger(__name__)

BATCH = 16  # jobs claimed in one transaction
LONGEST_WAIT_S = 5.0  # polling is the truth; hints only make it quicker


class Loop:
    """Runs on one thread; effects go to `dispatch`. `poke` is a hint that something is due.

    `progressed` is called after every round that went through, idle or not: what feeds the
    watchdog must be the loop itself, not a thread that would outlive it.
    """

    def __init__(
        self,
        world: World,
        timing: Timing,
        owner: str,
        dispatch: Callable[[Effect], None],
        progressed: Callable[[], None],
    ) -> None:
        self._world = world
        self._timing = timing
        self._owner = owner
        self._dispatch = dispatch
        self._progressed = progressed
        self._poked = threading.Event()
        self._stopping = threading.Event()

    def poke(self) -> None:
        """Something may be due: look now."""
        self._poked.set()

    def stop(self) -> None:
        """End after the pass at hand."""
        self._stopping.set()
        self._poked.set()

    def run(self) -> None:
        """Until `stop`. A store that does not answer is waited for, and nothing decided."""
        while not self._stopping.is_set():
            self._poked.clear()
            try:
                busy = self.round()
            except StoreError as error:
                log.warning("the store does not answer", error=str(error))
                self._stopping.wait(1.0)
                continue
            self._progressed()
            if not busy:
                self._poked.wait(self._idle_s())

    def round(self) -> bool:
        """Claim and decide once; whether there was anything to do."""
        claimed = claim_due(self._world, self._owner, BATCH)
        for job_id in claimed:
            if self._stopping.is_set():
                break
            self._decide(job_id)
        return bool(claimed)

    def _decide(self, job_id: str) -> None:
        try:
            drain(one_pass(self._world, self._timing, job_id, self._dispatch))
        except StoreError:
            raise
        except Exception:
            # One job's poison must not stop the others; its claim runs out and it is tried again.
            log.exception("a pass failed", job=job_id)

    def _idle_s(self) -> float:
        try:
            wake_us = self._world.store.next_wake_us()
        except StoreError:
            return 1.0
        if wake_us is None:
            return LONGEST_WAIT_S
        left_s = (wake_us - self._world.clock.now_us()) / 1e6
        return min(max(left_s, 0.005), LONGEST_WAIT_S)


def run_effect(world: World, effect: Effect) -> None:
    """One call, on a thread of the pool. A bug in it is logged; the call is due again later."""
    try:
        drain(one_effect(world, effect))
    except StoreError as error:
        log.warning("an outcome could not be recorded", effect=effect.kind.value, error=str(error))
    except Exception:
        log.exception("a call failed", effect=effect.kind.value, node=effect.node.id)
