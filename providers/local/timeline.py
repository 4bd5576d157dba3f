"""Run actions after a delay, each on its own thread."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable


class ScheduledAction:
    """An action that runs at most once. Thread-safe."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action
        self._lock = threading.Lock()
        self._pending = True

    def cancel(self) -> bool:
        """Cancel the action. Returns False if it has already started or been cancelled."""
        with self._lock:
            was_pending, self._pending = self._pending, False
            return was_pending

    def run(self) -> None:
        """Run the action now, unless it has already started or been cancelled."""
        if self.cancel():
            self._action()


class Timeline:
    """A scheduler thread. Actions run on their own threads, so a slow one delays no other."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int, ScheduledAction]] = []
        self._numbers = itertools.count()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="timeline", daemon=True)
        self._thread.start()

    def after(self, delay_s: float, action: Callable[[], object]) -> ScheduledAction:
        """Run `action` in `delay_s` seconds."""
        scheduled = ScheduledAction(action)
        with self._changed:
            at = self._monotonic() + max(0.0, delay_s)
            heapq.heappush(self._heap, (at, next(self._numbers), scheduled))
            self._changed.notify()
        return scheduled

    def close(self) -> None:
        """Start no more actions. Running ones continue."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        with self._changed:
            while not self._closed:
                if not self._heap:
                    self._changed.wait()
                    continue
                wait_s = self._heap[0][0] - self._monotonic()
                if wait_s > 0:
                    self._changed.wait(wait_s)
                    continue
                scheduled = heapq.heappop(self._heap)[2]
                threading.Thread(target=scheduled.run, daemon=True).start()
