"""Safe mode: limit a daemon that has crashed repeatedly.

Its actions on machines may cause its crashes, and each restart would repeat them. After several bad
starts within minutes it only observes, saves and terminates; it launches and starts nothing, and
alerts. Safe mode ends after a quiet period, or when the operator ends it.

Starts are counted in a file of the state folder, because the database may be the broken part. A
start that ends normally, or with an error message, is removed from the count.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

import structlog

from spotd.base.clock import Clock
from spotd.config.file import SafeModeSettings
from spotd.domain.units import S

log = structlog.get_logger(__name__)

FILE = "starts"


class SafeMode:
    """The safe mode of one daemon. Call `begin` once, before the daemon acts."""

    def __init__(self, folder: Path, clock: Clock, settings: SafeModeSettings) -> None:
        self._path = folder / FILE
        self._clock = clock
        self._settings = settings
        self._lock = threading.Lock()
        self._began_us = 0  # of this start, on record
        self._end_s = 0.0  # monotonic; 0: not in safe mode
        self._crashes = 0

    def begin(self) -> str:
        """Record this start. Return why safe mode is on, or ""."""
        now_us = self._clock.now_us()
        recent = [at_us for at_us in self._read() if self._recent(at_us, now_us)]
        self._began_us, self._crashes = now_us, len(recent)
        self._write([*recent, now_us])
        if self._crashes >= self._settings.after_crashes:
            self._end_s = self._clock.monotonic_s() + self._settings.quiet_s
        return self.why()

    def end_well(self) -> None:
        """Remove this start from the count: it ended normally, or has lasted."""
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
        """Return when safe mode ends by itself, or 0 if it is off."""
        left_s = self._left_s()
        return self._clock.now_us() + int(left_s * S) if left_s else 0

    def leave(self) -> None:
        """End safe mode at the operator's request."""
        self._end_s = 0.0

    def _left_s(self) -> float:
        return max(self._end_s - self._clock.monotonic_s(), 0.0) if self._end_s else 0.0

    def _recent(self, at_us: int, now_us: int) -> bool:
        return 0 <= now_us - at_us < self._settings.within_s * S

    def _read(self) -> list[int]:
        """Return the recorded starts; an unreadable file counts as none."""
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return []
        rows = document if isinstance(document, list) else []
        return [at_us for at_us in rows if type(at_us) is int]

    def _write(self, starts: list[int]) -> None:
        """Replace the file atomically. A full disk only causes a warning."""
        temporary = self._path.with_suffix(".new")
        try:
            with self._lock:
                temporary.write_text(json.dumps(starts), encoding="utf-8")
                temporary.replace(self._path)
        except OSError as error:
            log.warning("this start is not on record", error=str(error))
