"""How much of a job's data came from where: counted by who copies it, told by the agent.

Each process that copies counts into a file of its own, so that one that follows another writes over
nothing: together they are what this machine read, however often the agent was begun anew. What came
in the last second of one that is killed is not in it.
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

KEEP_EVERY_S = 1.0
Source = tuple[str, str]  # where the job wants it, and the URL of the store that it came from


class ByteCounter:
    """Of this process, kept in `folder`. Safe to use from several threads."""

    def __init__(self, folder: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._file = folder / f"{os.getpid()}-{secrets.token_hex(4)}.json"
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._read: dict[Source, int] = {}
        self._keep_at = 0.0

    def of(self, target: str, url: str) -> Callable[[int], None]:
        """What is to be told of each piece, in bytes, that came from that store."""

        def came(size: int) -> None:
            with self._lock:
                self._read[target, url] = self._read.get((target, url), 0) + size
                if self._monotonic() >= self._keep_at:
                    self._write()

        return came

    def keep(self) -> None:
        """All of it, now: the process is about to end."""
        with self._lock:
            self._write()

    def _write(self) -> None:
        """A disk that is full ends no copy: the next write has it all."""
        self._keep_at = self._monotonic() + KEEP_EVERY_S
        if not self._read:
            return
        with suppress(OSError):
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            new = self._file.with_suffix(".new")
            new.write_text(json.dumps([[*source, size] for source, size in self._read.items()]))
            new.replace(self._file)


def counted(folder: Path) -> dict[Source, int]:
    """In bytes, by all that counted there."""
    found: dict[Source, int] = {}
    for file in sorted(folder.glob("*.json")):
        with suppress(OSError, ValueError):
            for target, url, size in json.loads(file.read_bytes()):
                found[target, url] = found.get((target, url), 0) + size
    return found
