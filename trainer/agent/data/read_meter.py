"""How much is read over a mount: by rclone's own count, in its log each ten seconds.

What it had read since the last of these when it is ended is not known, nor what was on the line
when a file was closed before its end. What is told once is not told again by an agent that comes
after: how far it is told is in a file in memory.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path

EVERY_S = 10
TELL_EVERY_S = 60.0
# Older ones write "60.016M / 60.016 MBytes", newer ones "60.016 MiB / 60.016 MiB"; both mean 2^20.
COUNT = re.compile(r" NOTICE: +([0-9.]+) ?([kKMGTPE]?)i?B?(?:ytes)? / ")
_TAIL_BYTES = 1 << 16
_UNITS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}


def counting(every_s: int) -> list[str]:
    """What rclone is told for that."""
    return [f"--stats={every_s}s", "--stats-one-line", "--stats-log-level=NOTICE"]


class ReadMeter:
    """Of the mount whose log and state are these files."""

    def __init__(self, log: Path, state: Path) -> None:
        self._log, self._state = log, state
        self._tell_at = 0.0
        self._unkept = 0  # told, and memory was full

    def begin(self) -> None:
        """An rclone is about to begin, which counts from nothing. Raises OSError."""
        rest = max(0, self._count() - self._told())
        size = self._log.stat().st_size if self._log.exists() else 0
        self._write(size, -rest)

    def news(self, now: float, *, last: bool = False) -> int:
        """The bytes to be told now: once in a while, or as the `last` ones. Then `tell`."""
        if not last and now < self._tell_at:
            return 0
        self._tell_at = now + TELL_EVERY_S
        return max(0, self._count() - self._told())

    def tell(self, size: int) -> None:
        """So many were told. Where memory is full, only this agent knows of it."""
        self._unkept += size
        with suppress(OSError):
            self._write(self._kept().get("from", 0), self._told())
            self._unkept = 0

    def _told(self) -> int:
        return self._kept().get("told", 0) + self._unkept

    def _kept(self) -> dict[str, int]:
        with suppress(OSError, ValueError):
            found = json.loads(self._state.read_bytes())
            return dict(found) if isinstance(found, dict) else {}
        return {}

    def _write(self, begin: int, told: int) -> None:
        new = self._state.with_name(f"{self._state.name}.new")
        new.write_text(json.dumps({"from": begin, "told": told}))
        new.replace(self._state)

    def _count(self) -> int:
        """The newest that this rclone wrote; while it has written none, nothing."""
        if not self._state.exists():
            return 0
        try:
            with self._log.open("rb") as file:
                end, begin = file.seek(0, 2), self._kept().get("from", 0)
                begin = begin if begin <= end else 0  # a new file
                file.seek(max(begin, end - _TAIL_BYTES))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return 0
        found = (COUNT.search(line) for line in reversed(lines))
        match = next((one for one in found if one), None)
        return round(float(match[1]) * 1024 ** _UNITS[match[2]]) if match else 0
