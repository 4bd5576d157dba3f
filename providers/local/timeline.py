"""Things that are to happen later, each on a thread of its own when its time has come."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable


class Appointment:
    """One thing to come; `cancel` is safe at any time and says whether it came in time."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action
        self._lock = threading.Lock()
        self._open = True

    def cancel(self) -> bool:
        """Do not let it happen. False when it has begun already."""
        with self._lock:
            was_open, self._open = self._open, False
            return was_open

    def begin(self) -> None:
        """Let it happen now, at most once."""
        if self.cancel():
            self._action()


class Timeline:
    """One thread that waits; actions run beside it, so that a slow one delays no other."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int, Appointment]] = []
        self._numbers = itertools.count()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="timeline", daemon=True)
        self._thread.start()

    def after(self, delay_s: float, action: Callable[[], object]) -> Appointment:
        """Do `action` in `delay_s` seconds."""
        appointment = Appointment(action)
        with self._changed:
            at = self._monotonic() + max(0.0, delay_s)
            heapq.heappush(self._heap, (at, next(self._numbers), appointment))
            self._changed.notify()
        return appointment

    def close(self) -> None:
        """Nothing more happens; what has begun goes on."""
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
                appointment = heapq.heappop(self._heap)[2]
                threading.Thread(target=appointment.begin, daemon=True).start()
