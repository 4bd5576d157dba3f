"""Time, identity and randomness as things that are passed in, so that a simulator can own them."""

from __future__ import annotations

import base64
import secrets
import time
from typing import Protocol

_JOB_ID_BYTES = 6  # 48 random bits, of which nine characters show 45


class Clock(Protocol):
    """Wall time for the record, monotonic time for durations."""

    def now_us(self) -> int:
        """Microseconds since the epoch, UTC."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The clock of this machine."""

    def now_us(self) -> int:
        return time.time_ns() // 1_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


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
