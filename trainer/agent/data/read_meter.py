"""Count the bytes read through a mount, from rclone's own statistics in its log every ten seconds.

Bytes read after the last statistics line before its end are not counted, nor those in flight when a
file was closed early. A file in memory records how much was reported, so that a restarted agent
does not report it again.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path

EVERY_S = 10
REPORT_EVERY_S = 60.0
# Older versions print "60.016M / 60.016 MBytes", newer "60.016 MiB / 60.016 MiB"; both mean 2^20.
STATS_LINE = re.compile(r" NOTICE: +([0-9.]+) ?([kKMGTPE]?)i?B?(?:ytes)? / ")
_TAIL_BYTES = 1 << 16
_UNITS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}


def stats_flags(every_s: int) -> list[str]:
    """Return the options that make rclone log its statistics."""
    return [f"--stats={every_s}s", "--stats-one-line", "--stats-log-level=NOTICE"]


class ReadMeter:
    """Counts the bytes of the mount with this log, and keeps its state in a file."""

    def __init__(self, log: Path, state: Path) -> None:
        self._log, self._state = log, state
        self._report_at = 0.0
        self._unsaved = 0  # reported while memory was full, so missing in the state file

    def begin(self) -> None:
        """Prepare for a new rclone process, which counts from zero. Raises OSError."""
        unreported = max(0, self._count() - self._reported())
        size = self._log.stat().st_size if self._log.exists() else 0
        self._write(size, -unreported)

    def pending_bytes(self, now: float, *, last: bool = False) -> int:
        """Return the bytes to report now: at intervals, or all with `last`. Call `mark_reported`
        then."""
        if not last and now < self._report_at:
            return 0
        self._report_at = now + REPORT_EVERY_S
        return max(0, self._count() - self._reported())

    def mark_reported(self, size: int) -> None:
        """Record that bytes were reported. If memory is full, only this agent knows."""
        self._unsaved += size
        with suppress(OSError):
            self._write(self._load_state().get("from", 0), self._reported())
            self._unsaved = 0

    def _reported(self) -> int:
        return self._load_state().get("told", 0) + self._unsaved

    def _load_state(self) -> dict[str, int]:
        with suppress(OSError, ValueError):
            state = json.loads(self._state.read_bytes())
            return dict(state) if isinstance(state, dict) else {}
        return {}

    def _write(self, begin: int, reported: int) -> None:
        new = self._state.with_name(f"{self._state.name}.new")
        new.write_text(json.dumps({"from": begin, "told": reported}))
        new.replace(self._state)

    def _count(self) -> int:
        """Return the newest count that this rclone process logged, or 0."""
        if not self._state.exists():
            return 0
        try:
            with self._log.open("rb") as file:
                end, begin = file.seek(0, 2), self._load_state().get("from", 0)
                begin = begin if begin <= end else 0  # a new file
                file.seek(max(begin, end - _TAIL_BYTES))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return 0
        matches = (STATS_LINE.search(line) for line in reversed(lines))
        match = next(filter(None, matches), None)
        return round(float(match[1]) * 1024 ** _UNITS[match[2]]) if match else 0
