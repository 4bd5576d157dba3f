"""The journal: one node's facts, appended as JSON lines and numbered without a gap.

A full disk is not a death: lines that the disk does not take go to a second file in memory, and
move to the first when there is room again. A line cut off by a crash is cut away at the next start.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from spotd import wire
from spotd.wire import JournalEntry, WireError, parse_line

_LOG = logging.getLogger(__name__)

# Facts that a replacement depends on; the others may be lost with the machine.
DURABLE_KINDS = frozenset(
    {wire.HELLO, wire.READY, wire.CLAIMED, wire.CHECKPOINT, wire.NOTICE, wire.NOTICE_WITHDRAWN}
    | {wire.RELEASED, wire.EXITED}
)

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def parse_entry(line: bytes) -> JournalEntry | None:
    """The entry of a line of the file, or None for a damaged one."""
    try:
        entry = parse_line(line)
    except WireError:
        return None
    return entry if isinstance(entry, JournalEntry) else None


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []


class Journal:
    """The writing end; one per generation, in the agent. Safe to use from several threads.

    `on_append(seq)` is called as soon as others can read the entry, and before it is forced to
    disk, because forcing may take long while a checkpoint is being written. `refused` says that the
    disk had no room for the last try.
    """

    def __init__(
        self,
        path: Path,
        overflow: Path,
        generation: int,
        *,
        now_us: Callable[[], int],
    ) -> None:
        self._overflow = overflow
        self._generation = generation
        self._now_us = now_us
        self.on_append: Callable[[int], None] = lambda _seq: None
        self._lock = threading.Lock()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        lines = _lines(path)
        if lines and (not lines[-1].endswith(b"\n") or parse_entry(lines[-1]) is None):
            lines.pop()
            os.ftruncate(self._file, sum(map(len, lines)))
        self._size = os.fstat(self._file).st_size
        self.entries = [entry for entry in map(parse_entry, lines) if entry is not None]
        self.seq = self.entries[-1].seq if self.entries else 0
        self._waiting: list[bytes] = []
        self.refused = False
        self._torn = False  # a part of a line may stand at the end of the file
        self._spilled = overflow.exists()
        for line in _lines(overflow):
            entry = parse_entry(line)
            if entry is not None and entry.seq > self.seq:
                self._waiting.append(line)
                self.entries.append(entry)
                self.seq = entry.seq

    def append(self, kind: str, data: Mapping[str, Any] | None = None) -> JournalEntry:
        """Write one fact; it is safe from a kill of the agent when this returns."""
        with self._lock:
            entry = JournalEntry(
                self.seq + 1, self._now_us(), self._generation, kind, dict(data or {})
            )
            self._waiting.append(entry.to_line())
            self.seq = entry.seq
            on_disk = self._drain()
            if not on_disk:
                self._spill()
        self.on_append(entry.seq)
        if on_disk and kind in DURABLE_KINDS:
            self._force()
        return entry

    def retry(self) -> None:
        """Move what the disk did not take, if it takes it now."""
        with self._lock:
            if self._waiting:
                self._drain()

    def skip_to(self, seq: int) -> bool:
        """Number on after `seq`, which a reader already has: our last lines went with a crash of
        the machine, and numbers are never used twice."""
        with self._lock:
            behind = seq > self.seq
            self.seq = max(self.seq, seq)
        return behind

    def close(self) -> None:
        with self._lock:
            os.close(self._file)

    def _drain(self) -> bool:
        data = b"".join(self._waiting)
        try:
            if self._torn:
                self._cut()
            written = os.write(self._file, data)
            if written != len(data):
                raise OSError(errno.ENOSPC, f"short write: {written} of {len(data)} bytes")
        except OSError as error:
            self._torn = True
            self.refused = error.errno in _NO_ROOM
            with suppress(OSError):  # a broken disk; it is tried again before the next line
                self._cut()
            if len(self._waiting) == 1:
                _LOG.warning("the journal cannot be written: %s; it goes on in memory", error)
            return False
        self._size += written
        self.refused = False
        if self._spilled:
            self._spilled = False
            self._overflow.unlink(missing_ok=True)
            _LOG.info("the journal is on disk again")
        self._waiting.clear()
        return True

    def _cut(self) -> None:
        """Take away the part of a line that was written. Raises OSError."""
        os.ftruncate(self._file, self._size)
        self._torn = False

    def _spill(self) -> None:
        self._spilled = True
        try:
            with self._overflow.open("ab") as file:
                file.write(self._waiting[-1])
        except OSError:
            # It stays in our own memory, and goes out with the next line that can be written.
            _LOG.exception("the journal's overflow cannot be written either")

    def _force(self) -> None:
        try:
            os.fsync(self._file)
        except OSError:
            _LOG.exception("the journal could not be forced to disk")


class JournalReader:
    """The reading end: every entry after `after`, once and in order, from another process."""

    def __init__(self, path: Path, overflow: Path, after: int) -> None:
        self._path = path
        self._overflow = overflow
        self._offset = 0
        self.seq = after

    def read(self) -> list[JournalEntry]:
        """What is new since the last call."""
        found = []
        for line in self._new_lines():
            entry = parse_entry(line)
            if entry is not None and entry.seq > self.seq:
                found.append(entry)
                self.seq = entry.seq
        for line in _lines(self._overflow):
            entry = parse_entry(line)
            # A gap means that lines moved to the first file after we looked there.
            if entry is not None and entry.seq == self.seq + 1:
                found.append(entry)
                self.seq = entry.seq
        return found

    def _new_lines(self) -> list[bytes]:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.splitlines(keepends=True)
