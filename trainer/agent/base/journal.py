"""The journal: one node's facts as JSON lines with consecutive numbers.

A full disk does not end the agent: lines that do not fit go to an overflow file in memory, and move
to the disk when there is space again. A line cut off by a crash is removed at the next start.
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

# Facts that a replacement node depends on; the others may be lost with the machine.
DURABLE_KINDS = frozenset(
    {wire.HELLO, wire.READY, wire.CLAIMED, wire.CHECKPOINT, wire.NOTICE, wire.NOTICE_WITHDRAWN}
    | {wire.RELEASED, wire.EXITED}
)

_OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT)


def parse_entry(line: bytes) -> JournalEntry | None:
    """Parse one line of the file; None if it is damaged."""
    try:
        entry = parse_line(line)
    except WireError:
        return None
    return entry if isinstance(entry, JournalEntry) else None


def _read_lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []


class Journal:
    """The writer, one per generation. Thread-safe.

    `on_append(seq)` is called as soon as others can read the entry and before the fsync, which may
    take long while a checkpoint is being written. `out_of_space` tells that the last write failed
    because the disk or the quota is full.
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
        lines = _read_lines(path)
        if lines and (not lines[-1].endswith(b"\n") or parse_entry(lines[-1]) is None):
            lines.pop()
            os.ftruncate(self._file, sum(map(len, lines)))
        self._size = os.fstat(self._file).st_size
        self.entries = [entry for entry in map(parse_entry, lines) if entry is not None]
        self.seq = self.entries[-1].seq if self.entries else 0
        self._pending: list[bytes] = []
        self.out_of_space = False
        self._torn = False  # the file may end with a partly written line
        self._spilled = overflow.exists()
        for line in _read_lines(overflow):
            entry = parse_entry(line)
            if entry is not None and entry.seq > self.seq:
                self._pending.append(line)
                self.entries.append(entry)
                self.seq = entry.seq

    def append(self, kind: str, data: Mapping[str, Any] | None = None) -> JournalEntry:
        """Write one fact. When this returns, a kill of the agent cannot lose it."""
        with self._lock:
            entry = JournalEntry(
                seq=self.seq + 1,
                at_us=self._now_us(),
                generation=self._generation,
                kind=kind,
                data=dict(data or {}),
            )
            self._pending.append(entry.to_line())
            self.seq = entry.seq
            on_disk = self._flush()
            if not on_disk:
                self._spill()
        self.on_append(entry.seq)
        if on_disk and kind in DURABLE_KINDS:
            self._fsync()
        return entry

    def retry(self) -> None:
        """Write pending lines to the disk, if it accepts them now."""
        with self._lock:
            if self._pending:
                self._flush()

    def skip_to(self, seq: int) -> bool:
        """Continue numbering after `seq`, which a reader already has; returns True if entries were
        missing.

        Our last lines were lost in a crash of the machine, and numbers are never reused.
        """
        with self._lock:
            behind = seq > self.seq
            self.seq = max(self.seq, seq)
        return behind

    def close(self) -> None:
        with self._lock:
            os.close(self._file)

    def _flush(self) -> bool:
        data = b"".join(self._pending)
        try:
            if self._torn:
                self._truncate_torn_line()
            written = os.write(self._file, data)
            if written != len(data):
                raise OSError(errno.ENOSPC, f"short write: {written} of {len(data)} bytes")
        except OSError as error:
            self._torn = True
            self.out_of_space = error.errno in _OUT_OF_SPACE
            with suppress(OSError):  # a broken disk: tried again before the next line
                self._truncate_torn_line()
            if len(self._pending) == 1:
                _LOG.warning("the journal cannot be written: %s; it continues in memory", error)
            return False
        self._size += written
        self.out_of_space = False
        if self._spilled:
            self._spilled = False
            self._overflow.unlink(missing_ok=True)
            _LOG.info("the journal is on disk again")
        self._pending.clear()
        return True

    def _truncate_torn_line(self) -> None:
        """Remove the partly written line at the end of the file. Raises OSError."""
        os.ftruncate(self._file, self._size)
        self._torn = False

    def _spill(self) -> None:
        self._spilled = True
        try:
            with self._overflow.open("ab") as file:
                file.write(self._pending[-1])
        except OSError:
            # The line stays in `_pending` and is written together with the next one.
            _LOG.exception("the journal's overflow cannot be written either")

    def _fsync(self) -> None:
        try:
            os.fsync(self._file)
        except OSError:
            _LOG.exception("the journal could not be forced to disk")


class JournalReader:
    """Reads every entry after `after`, once and in order, from another process."""

    def __init__(self, path: Path, overflow: Path, after: int) -> None:
        self._path = path
        self._overflow = overflow
        self._offset = 0
        self.seq = after

    def read(self) -> list[JournalEntry]:
        """Return the entries since the last call."""
        entries = []
        for line in self._new_lines():
            entry = parse_entry(line)
            if entry is not None and entry.seq > self.seq:
                entries.append(entry)
                self.seq = entry.seq
        for line in _read_lines(self._overflow):
            entry = parse_entry(line)
            # A gap means that lines moved to the first file after it was read above.
            if entry is not None and entry.seq == self.seq + 1:
                entries.append(entry)
                self.seq = entry.seq
        return entries

    def _new_lines(self) -> list[bytes]:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        return complete.splitlines(keepends=True)
