"""Save before the machine ends although the program does not reach the end of a step.

A program can spend minutes between two steps: an evaluation, a wait for data, a callback, or what
follows its last training. Nothing that is saved changes meanwhile, so a thread of this process can
save it at the last moment, and end the program. The threads of several ranks learn of each other in
rounds, beside training, and save together the step at which rank 0 stands.

Standard library only, Python >= 3.10.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

POLL_S = 0.1
RANKS_POLL_S = 0.25  # between rounds of several ranks
LAST_S = 1.5  # before the end: HEAD is released without a save, if it can still be
GRACE_S = 25.0  # until the end, where nobody says when that is
NOWHERE = -1  # the place of a program whose state may be changing

Rows = Callable[[Sequence[float], Callable[[float], bool]], list[list[float]] | None]


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

    def place(self) -> int:
        """The place at which this rank could be saved now, counted alike by all; or NOWHERE."""
        ...

    def prepare(self, place: int, *, still: bool) -> bool:
        """Whether this rank can be saved as it was at `place`; then `leave` follows, or this again.

        `still`: nothing changes until then.
        """
        ...

    def leave(self, *, saves: bool) -> int:
        """Save if there is something to save, release HEAD, disconnect; return the exit code."""
        ...


def alone(numbers: Sequence[float], _: Callable[[float], bool]) -> list[list[float]]:
    """The rows of a program of one rank; see Ranks.rows."""
    return [list(numbers)]


class DeadlineGuard:
    """Ends the program at the last moment. `start` it once.

    What is saved may change while `busy()` is in effect, which is so from the start, and not while
    `idle()` is. The program calls both in turn from one thread; a `busy()` that comes too late does
    not return. `rows` exchanges numbers with the guards of the other ranks, if there are any.
    """

    def __init__(
        self,
        program: Guarded,
        *,
        rows: Rows | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        self._program, self._monotonic, self._end = program, monotonic, end
        self._rows, self._others_are_lost = rows or alone, False
        self._poll_s = POLL_S if rows is None else RANKS_POLL_S
        self._changing = threading.Lock()
        self._changing.acquire()
        self._is_idle = False
        self._leaving = threading.Lock()
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
        """The program saves and ends by itself; see `stand_aside`."""
        self._ended.set()
        self.stand_aside()

    def stand_aside(self) -> None:
        """Block if the guard is ending the program: other ranks may have ended by it already."""
        if threading.current_thread() is not self._thread:
            with self._leaving:
                pass

    def _run(self) -> None:
        while not self._ended.wait(self._poll_s):
            saves = self._holds_all()
            if saves or self._is_last_moment():
                with self._leaving:
                    if not self._ended.is_set():
                        self._leave(saves=saves)
                return

    def _holds_all(self) -> bool:
        """Whether it is time to save, and every rank stands still, or keeps what it was."""
        remaining_s = self._remaining_s()
        known_s = math.inf if remaining_s is None else remaining_s
        rows = self._exchange([self._program.place(), known_s, self._program.needed_s()])
        if not rows or min(row[1] for row in rows) > max(LAST_S, *(row[2] for row in rows)):
            return False
        place = int(rows[0][0])
        if place == NOWHERE:
            return False
        still = self._changing.acquire(blocking=False)
        votes = self._exchange([self._program.prepare(place, still=still)])
        agreed = bool(votes) and all(vote for [vote] in votes)
        if still and not agreed:
            self._changing.release()
        return agreed

    def _exchange(self, numbers: Sequence[float]) -> list[list[float]]:
        """Return every rank's numbers, in the order of ranks; [] once another one is lost."""
        rows = None
        if not self._others_are_lost:
            try:
                rows = self._rows(numbers, self._gives_up)
            except RuntimeError as error:  # another rank has ended
                if not self._ended.is_set() and self._program.stops_in_s() is not None:
                    print(f"spotd_hook: a rank does not answer: {error}", file=sys.stderr)
        self._others_are_lost = rows is None
        return rows or []

    def _gives_up(self, seconds: float) -> bool:
        return self._ended.wait(seconds) or self._is_last_moment()

    def _is_last_moment(self) -> bool:
        remaining_s = self._remaining_s()
        return remaining_s is not None and remaining_s <= LAST_S

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
            if saves:
                self._leave(saves=False)
            return
        sys.stdout.flush()
        sys.stderr.flush()
        self._end(code)
