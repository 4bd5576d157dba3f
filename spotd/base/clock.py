"""Clocks and sources of identity and randomness, passed in so that a simulator can replace them."""

from __future__ import annotations

import base64
import secrets
import threading
import time
from collections.abc import Callable
from typing import Protocol

import structlog

log = structlog.get_logger(__name__)

STEP_S = 5.0  # a wall clock that gains more than this at once was set, not steered
BELIEF_S = 600.0  # how long it has to stay ahead: time servers correct each other sooner
GAP_S = 5.0  # who listens comes back many times a second; after longer than this, nobody did
_JOB_ID_BYTES = 6  # 48 random bits, of which nine characters show 45


class Clock(Protocol):
    """Wall time for the record, monotonic time for durations."""

    def now_us(self) -> int:
        """Microseconds since the epoch, UTC; never goes back."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...

    def sleep(self, seconds: float) -> None: ...


def _wall_ns() -> int:
    return time.time_ns()


def ticks_ns() -> int:
    """Counts on while the machine is suspended, which CLOCK_MONOTONIC does not: nodes cost then."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return time.monotonic_ns()


class SystemClock:
    """This machine's clock, with jumps corrected.

    If the wall clock is set back, ours continues by the monotonic clock: what was done a moment ago
    must not lie in the future. If it is set ahead, ours continues by the monotonic clock for
    `BELIEF_S`, because an hour that did not pass would be billed and would end whatever waits. A
    clock that is still ahead then is right: the whole machine was suspended, and that time was paid
    for.
    """

    def __init__(
        self, wall_ns: Callable[[], int] = _wall_ns, ticks_ns: Callable[[], int] = ticks_ns
    ) -> None:
        self._lock = threading.Lock()
        self._wall_ns, self._read_ticks_ns = wall_ns, ticks_ns
        self._now_us = wall_ns() // 1_000
        self._ticks_us = ticks_ns() // 1_000
        self._doubted_us = 0  # since which tick the wall clock is too far ahead; 0: it is not

    def now_us(self) -> int:
        with self._lock:
            ticks_us = self._read_ticks_ns() // 1_000
            passed_us, self._ticks_us = ticks_us - self._ticks_us, ticks_us
            self._now_us += passed_us
            ahead_us = self._wall_ns() // 1_000 - self._now_us
            if ahead_us <= STEP_S * 1e6:
                self._doubted_us = 0
                self._now_us += max(ahead_us, 0)
            elif not self._doubted_us:
                self._doubted_us = ticks_us
                text = "this machine's clock was set ahead: not believed until it stays so"
                log.warning(text, seconds=round(ahead_us / 1e6, 1), believed_after_s=BELIEF_S)
            elif ticks_us - self._doubted_us > BELIEF_S * 1e6:
                self._doubted_us = 0
                self._now_us += ahead_us
                log.warning("the clock is believed now", seconds=round(ahead_us / 1e6, 1))
            return self._now_us

    def not_before(self, at_us: int) -> int:
        """Continue from `at_us` if that is later than now; return the difference in microseconds.

        What an earlier daemon did must not lie in the future either.
        """
        behind_us = max(at_us - self.now_us(), 0)
        with self._lock:
            self._now_us += behind_us
        return behind_us

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class ListeningSince:
    """Since when nodes can be heard without a gap.

    A daemon that was away, a suspended box, an unavailable store or a clock that jumped is not a
    node's silence.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._since_us = self._last_us = clock.now_us()

    def listened(self) -> None:
        """Note that everything nodes sent was read and recorded."""
        with self._lock:
            now_us = self._clock.now_us()
            self._since_us, self._last_us = self._since(now_us), now_us

    def since_us(self) -> int:
        """Return when the last gap ended; now, while it lasts."""
        with self._lock:
            return self._since(self._clock.now_us())

    def _since(self, now_us: int) -> int:
        return now_us if now_us - self._last_us > GAP_S * 1e6 else self._since_us


class Ids(Protocol):
    """A source of identities and key material."""

    def random_bytes(self, count: int) -> bytes:
        """`count` unpredictable bytes."""
        ...

    def job_id(self) -> str:
        """ "j" and nine characters of a-z2-7."""
        ...

    def token(self) -> str:
        """32 hex characters, for owners, nonces and request ids."""
        ...


class RandomIds:
    """Identities from the operating system's generator."""

    def random_bytes(self, count: int) -> bytes:
        return secrets.token_bytes(count)

    def job_id(self) -> str:
        return "j" + base64.b32encode(self.random_bytes(_JOB_ID_BYTES)).decode().lower()[:9]

    def token(self) -> str:
        return self.random_bytes(16).hex()

    def chance(self) -> int:
        """Return 64 random bits."""
        return int.from_bytes(self.random_bytes(8), "big")
