"""Save before the machine ends although the program does not reach the end of a step.

A program can spend minutes between two steps: an evaluation, a wait for data, a callback, or what
follows its last training. Nothing that is saved changes meanwhile, so a thread of this process can
save it at the last moment, and end the program.

Standard library only, Python >= 3.10.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol

POLL_S = 0.1
LAST_S = 1.5  # before the end: HEAD is released without a save, if it can still be
GRACE_S = 25.0  # until the end, where nobody says when that is


class Guarded(Protocol):
    """The program that is guarded; called from the guard's thread."""

    def stops_in_s(self) -> float | None:
        """Seconds until the machine ends or the process is killed.

        None without a notice or a request to stop; infinite where only the end is unknown.
        """
        ...

    def needed_s(self) -> float:
        """Seconds that saving and releasing HEAD take, with a margin."""
        ...

    def leave(self, *, saves: bool) -> int:
        """Save if there is something to save, release HEAD, disconnect; return the exit code."""
        ...


class DeadlineGuard:
    """Ends the program at the last moment. `start` it once.

    What is saved may change while `busy()` is in effect, which is so from the start, and not while
    `idle()` is. The program calls both in turn from one thread; a `busy()` that comes too late does
    not return.
    """

    def __init__(
        self,
        program: Guarded,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        self._program, self._monotonic, self._end = program, monotonic, end
        self._changing = threading.Lock()
        self._changing.acquire()
        self._is_idle = False
        self._ended = threading.Event()
        self._stopped_at_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="deadline", daemon=True)

    def start(self) -> None:
        if not self._thread.is_alive() and not self._ended.is_set():
            self._thread.start()

    def idle(self) -> None:
        """From now on nothing changes that is saved."""
        if not self._is_idle:
            self._is_idle = True
            self._changing.release()

    def busy(self) -> None:
        """From now on it changes. Blocks for ever if the guard is saving."""
        if self._is_idle:
            self._changing.acquire()
            self._is_idle = False

    def dismiss(self) -> None:
        """The program saves and ends by itself."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(POLL_S):
            remaining_s = self._remaining_s()
            if remaining_s is None or remaining_s > max(self._program.needed_s(), LAST_S):
                continue
            saves = self._changing.acquire(blocking=False)
            if saves or remaining_s <= LAST_S:
                if not self._ended.is_set():
                    self._leave(saves=saves)
                return

    def _remaining_s(self) -> float | None:
        remaining_s = self._program.stops_in_s()
        if remaining_s is None:
            self._stopped_at_s = None
            return None
        if self._stopped_at_s is None:
            self._stopped_at_s = self._monotonic()
        if math.isinf(remaining_s):
            return self._stopped_at_s + GRACE_S - self._monotonic()
        return remaining_s

    def _leave(self, *, saves: bool) -> None:
        try:
            code = self._program.leave(saves=saves)
        except Exception as error:  # noqa: BLE001 - the machine ends whatever happens
            print(f"spotd_hook: not saved before the end: {error!r}", file=sys.stderr, flush=True)
            return
        sys.stdout.flush()
        sys.stderr.flush()
        self._end(code)
