"""Time, identity and randomness as things that are passed in, so that a simulator can own them."""

from __future__ import annotations

import base64
import secrets
import threading
import time
from typing import Protocol

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


class SystemClock:
    """The clock of this machine. Where it is set back, ours goes on by the monotonic clock: what
    was done a moment ago must not lie in the future."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now_us = 0
        self._ticks_us = time.monotonic_ns() // 1_000

    def now_us(self) -> int:
        with self._lock:
            ticks_us = time.monotonic_ns() // 1_000
            passed_us = ticks_us - self._ticks_us
            self._now_us = max(time.time_ns() // 1_000, self._now_us + passed_us)
            self._ticks_us = ticks_us
            return self._now_us

    def not_before(self, at_us: int) -> int:
        """Go on from `at_us` if that is later than now; by how much it is, in microseconds. What a
        daemon before us did must not lie in the future either."""
        behind_us = max(at_us - self.now_us(), 0)
        with self._lock:
            self._now_us += behind_us
        return behind_us

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Listening:
    """Since when nodes could be heard without a gap: a daemon that was away, a box that was
    suspended, a store that took nothing down or a clock that jumped is not a node's silence."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._since_us = self._last_us = clock.now_us()

    def listened(self) -> None:
        """All that nodes had to say was read and is on record."""
        with self._lock:
            now_us = self._clock.now_us()
            self._since_us, self._last_us = self._since(now_us), now_us

    def since_us(self) -> int:
        """When the last gap ended; now, while it lasts."""
        with self._lock:
            return self._since(self._clock.now_us())

    def _since(self, now_us: int) -> int:
        return now_us if now_us - self._last_us > GAP_S * 1e6 else self._since_us


class Ids(Protocol):
    """Where identities and key material come from."""

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
    """From the operating system's generator."""

    def random_bytes(self, count: int) -> bytes:
        return secrets.token_bytes(count)

    def job_id(self) -> str:
        return "j" + base64.b32encode(self.random_bytes(_JOB_ID_BYTES)).decode().lower()[:9]

    def token(self) -> str:
        return self.random_bytes(16).hex()
