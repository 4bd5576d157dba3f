"""Count the bytes of a job's data read from each store; the agent reports them.

Each copying process writes its own file, so that counts survive restarts: the sum of all files is
what this machine read. A killed process loses at most its last second.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

WRITE_EVERY_S = 1.0
Source = tuple[str, str]  # mount target, and URL of the store that was read


class ByteCounter:
    """The counts of this process, written to a file in `folder`. Thread-safe."""

    def __init__(self, folder: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._file = folder / f"{os.getpid()}-{secrets.token_hex(4)}.json"
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._counts: dict[Source, int] = {}
        self._next_write_s = 0.0

    def counter(self, target: str, url: str) -> Callable[[int], None]:
        """A function to call with the size in bytes of each piece read from that store."""

        def add(size: int) -> None:
            with self._lock:
                self._counts[target, url] = self._counts.get((target, url), 0) + size
                if self._monotonic() >= self._next_write_s:
                    self._write()

        return add

    def flush(self) -> None:
        """Write the counts now. Call it before the process ends."""
        with self._lock:
            self._write()

    def _write(self) -> None:
        """Write the file. A full disk is ignored; the next write has the complete counts."""
        self._next_write_s = self._monotonic() + WRITE_EVERY_S
        if not self._counts:
            return
        with suppress(OSError):
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            new = self._file.with_suffix(".new")
            new.write_text(json.dumps([[*source, size] for source, size in self._counts.items()]))
            new.replace(self._file)


def read_counts(folder: Path) -> dict[Source, int]:
    """The bytes read per source, summed over all processes."""
    counts: dict[Source, int] = {}
    for file in sorted(folder.glob("*.json")):
        with suppress(OSError, ValueError):
            for target, url, size in json.loads(file.read_bytes()):
                counts[target, url] = counts.get((target, url), 0) + size
    return counts
