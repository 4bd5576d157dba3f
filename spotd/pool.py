"""Threads for calls: bounded per provider, with a lane of its own for terminate.

A cloud that hangs fills its own lane and no other's; money is never kept waiting behind creates.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from spotd.model import (
    EffectKind,
)
from spotd.plan import (
    Effect,
)

CLOUD_KINDS = frozenset({EffectKind.LAUNCH, EffectKind.RESOLVE, EffectKind.SURVEY})
CLOUD_CALLS = 8  # at once per provider
TERMINATE_CALLS = 2  # at once per provider, beside those
NODE_CALLS = 16  # SSH calls at once over all nodes


class Pool:
    """Runs effects on named lanes; `run` is given each effect on a thread of its lane."""

    def __init__(self, providers: Iterable[str], run: Callable[[Effect], None]) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._running: set[Future[None]] = set()
        self._nodes = ThreadPoolExecutor(NODE_CALLS, thread_name_prefix="node")
        self._clouds: dict[str, ThreadPoolExecutor] = {}
        self._terminates: dict[str, ThreadPoolExecutor] = {}
        for name in providers:
            self._clouds[name] = ThreadPoolExecutor(CLOUD_CALLS, thread_name_prefix=f"{name}")
            self._terminates[name] = ThreadPoolExecutor(
                TERMINATE_CALLS, thread_name_prefix=f"{name}-end"
            )

    def submit(self, effect: Effect) -> None:
        """Queue a call on its lane."""
        future = self._lane(effect).submit(self._run, effect)
        with self._lock:
            self._running.add(future)
        future.add_done_callback(self._done)

    def _lane(self, effect: Effect) -> ThreadPoolExecutor:
        provider = effect.node.offer.provider
        if effect.kind is EffectKind.TERMINATE:
            return self._terminates.get(provider, self._nodes)
        if effect.kind in CLOUD_KINDS:
            return self._clouds.get(provider, self._nodes)
        return self._nodes

    def _done(self, future: Future[None]) -> None:
        with self._lock:
            self._running.discard(future)

    def in_flight(self) -> int:
        """Calls queued or being made."""
        with self._lock:
            return len(self._running)

    def close(self, wait: bool) -> None:
        """Drop what is queued (it is due again at its deadline); `wait` for what is being made."""
        lanes = [self._nodes, *self._clouds.values(), *self._terminates.values()]
        for lane in lanes:
            lane.shutdown(wait=False, cancel_futures=True)
        if wait:
            for lane in lanes:
                lane.shutdown(wait=True)
