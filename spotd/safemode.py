"""Safe mode: what a daemon that crashed again and again may still do.

Whatever makes it crash may be what it does to machines, and each new life would do it once more. So
after several starts that ended badly within minutes it observes, saves and ends machines, and
creates and starts nothing; a person is told. It leaves that by itself when it has lived for a
while, or at a person's word.

The starts are counted in a file of the state folder, because the database may be what is broken. A
start that ends as it should, a refusal in words included, is taken out again.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path

import structlog

from spotd.clock import Clock
from spotd.model import S

log = structlog.get_logger(__name__)

FILE = "starts"


@dataclass(frozen=True)
class SafeModeSettings:
    """So many crashes within so many seconds, and how long it lasts then."""

    after_crashes: int = 5
    within_s: float = 600.0
    quiet_s: float = 600.0


class SafeMode:
    """Of one daemon. `begin` is called once, when it is about to do something."""

    def __init__(self, folder: Path, clock: Clock, settings: SafeModeSettings) -> None:
        self._path = folder / FILE
        self._clock = clock
        self._settings = settings
        self._lock = threading.Lock()
        self._began_us = 0  # of this start, on record
        self._end_s = 0.0  # monotonic; 0: not in safe mode
        self._crashes = 0

    def begin(self) -> str:
        """Put this start on record; why it is in safe mode, "" when it is not."""
        now_us = self._clock.now_us()
        known = [at_us for at_us in self._read() if self._recent(at_us, now_us)]
        self._began_us, self._crashes = now_us, len(known)
        self._write([*known, now_us])
        if self._crashes >= self._settings.after_crashes:
            self._end_s = self._clock.monotonic_s() + self._settings.quiet_s
        return self.why()

    def end_well(self) -> None:
        """This start ends as it should, or has lasted: it counts no more."""
        self._write([at_us for at_us in self._read() if at_us != self._began_us])

    def why(self) -> str:
        """Why it is in safe mode, and for how long; "" when it is not."""
        left_s = self._left_s()
        if not left_s:
            return ""
        return (
            f"spotd crashed {self._crashes} times within {self._settings.within_s / 60:g} min: it "
            f"launches and starts nothing for {left_s / 60:.0f} min more, or until `spotctl "
            "safe-mode leave`"
        )

    def until_us(self) -> int:
        """When it ends by itself; 0 when this is not safe mode."""
        left_s = self._left_s()
        return self._clock.now_us() + int(left_s * S) if left_s else 0

    def leave(self) -> None:
        """At a person's word."""
        self._end_s = 0.0

    def _left_s(self) -> float:
        return max(self._end_s - self._clock.monotonic_s(), 0.0) if self._end_s else 0.0

    def _recent(self, at_us: int, now_us: int) -> bool:
        return 0 <= now_us - at_us < self._settings.within_s * S

    def _read(self) -> list[int]:
        """What cannot be read says nothing."""
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return []
        rows = found if isinstance(found, list) else []
        return [at_us for at_us in rows if type(at_us) is int]

    def _write(self, starts: list[int]) -> None:
        """Whole or not at all. A disk that is full must not keep a daemon from its work."""
        fresh = self._path.with_suffix(".new")
        try:
            with self._lock:
                fresh.write_text(json.dumps(starts), encoding="utf-8")
                fresh.replace(self._path)
        except OSError as error:
            log.warning("this start is not on record", error=str(error))
