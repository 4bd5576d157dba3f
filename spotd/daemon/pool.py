"""Thread pools for effects: one per provider, with a separate one for terminate.

A cloud that hangs fills only its own pool. Terminate never waits behind launches, and a command to
a node never waits behind package uploads, machines that do not boot, or a store that hangs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from spotd.domain.node import EffectKind
from spotd.domain.plan import Effect

CLOUD_KINDS = frozenset({EffectKind.LAUNCH, EffectKind.RESOLVE, EffectKind.SURVEY})
CLOUD_CALLS = 8  # at once per provider
TERMINATE_CALLS = 2  # at once per provider, beside those
NODE_CALLS = {  # at once over all nodes
    EffectKind.BOOT: 16,
    EffectKind.START: 16,  # ships packages, for up to a quarter of an hour
    EffectKind.READ_HEAD: 4,
}
TELL_CALLS = 16  # commands at once over all nodes, beside those


class Pool:
    """Thread pools that run effects; `run` gets each effect on a thread of its pool."""

    def __init__(self, providers: Iterable[str], run: Callable[[Effect], None]) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._closed = False
        self._running: set[Future[None]] = set()
        self._surveys: set[str] = set()  # providers whose next survey waits for its turn
        self._tells = ThreadPoolExecutor(TELL_CALLS, thread_name_prefix="node-tell")
        self._nodes = {
            kind: ThreadPoolExecutor(calls, thread_name_prefix=f"node-{kind.value}")
            for kind, calls in NODE_CALLS.items()
        }
        self._clouds: dict[str, ThreadPoolExecutor] = {}
        self._terminates: dict[str, ThreadPoolExecutor] = {}
        self.change(providers)

    def change(self, providers: Iterable[str]) -> None:
        """Create pools for new providers; those of removed ones finish their queued calls."""
        configured = set(providers)
        with self._lock:
            for name in configured - self._clouds.keys():
                self._clouds[name] = ThreadPoolExecutor(CLOUD_CALLS, thread_name_prefix=f"{name}")
                self._terminates[name] = ThreadPoolExecutor(
                    TERMINATE_CALLS, thread_name_prefix=f"{name}-end"
                )
            for name in self._clouds.keys() - configured:
                self._clouds.pop(name).shutdown(wait=False)
                self._terminates.pop(name).shutdown(wait=False)

    def submit(self, effect: Effect) -> None:
        """Queue a call on its pool.

        A queued survey serves every job that wants one, because it lists the whole cloud. After
        `close` nothing is queued.
        """
        with self._lock:
            if self._closed or not self._wanted(effect):
                return
            future = self._lane(effect).submit(self._make, effect)
            self._running.add(future)
        future.add_done_callback(self._done)

    def _wanted(self, effect: Effect) -> bool:
        if effect.kind is not EffectKind.SURVEY:
            return True
        provider = effect.node.offer.provider
        queued = provider in self._surveys
        self._surveys.add(provider)
        return not queued

    def _make(self, effect: Effect) -> None:
        if effect.kind is EffectKind.SURVEY:
            with self._lock:
                self._surveys.discard(effect.node.offer.provider)
        self._run(effect)

    def _lane(self, effect: Effect) -> ThreadPoolExecutor:
        provider = effect.node.offer.provider
        if effect.kind is EffectKind.TERMINATE:
            return self._terminates.get(provider, self._tells)
        if effect.kind in CLOUD_KINDS:
            return self._clouds.get(provider, self._tells)
        return self._nodes.get(effect.kind, self._tells)

    def _done(self, future: Future[None]) -> None:
        with self._lock:
            self._running.discard(future)

    def close(self, patience_s: float) -> bool:
        """Drop queued calls, which are due again, and wait for running ones.

        Returns False if a call still runs after `patience_s`.
        """
        with self._lock:
            self._closed = True
        nodes, clouds = self._nodes.values(), self._clouds.values()
        for lane in (self._tells, *nodes, *clouds, *self._terminates.values()):
            lane.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            running = set(self._running)
        return not wait(running, patience_s).not_done
