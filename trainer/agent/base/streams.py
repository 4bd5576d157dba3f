"""Rotated logs of the training processes, addressed by byte offset since the stream's start.

`<stream>.log` is written; when full it becomes `<stream>.log.1`. A small index file records the
stream offset at which each of the two begins. It identifies them by inode, so that a reader is
never misled during a rotation. Bytes that the disk did not accept have offsets too: for a file with
such gaps, the index has its parts as pairs of a position in the file and a stream offset.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

LIMIT_BYTES = 16 << 20


def _older(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def _index(path: Path) -> Path:
    return path.with_name(path.name + ".index")


_Parts = list[tuple[int, int]]  # position in a file, and the stream offset there; in order


class LogWriter:
    """Appends to a stream. Bytes that the disk does not accept are dropped, because output must
    never block training; their offsets stay unused, so that a reader knows how many are missing."""

    def __init__(self, path: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self._path = path
        self._limit_bytes = limit_bytes
        self._parts: _Parts = [(0, 0)]
        self.dropped_bytes = 0
        self._unrecorded_bytes = 0  # of the dropped ones, those that the index does not have
        self._file = -1

    def write(self, data: bytes) -> None:
        while data:
            try:
                if self._file < 0:
                    self._file = self._open()
                    self._parts = self._parts_of(self._file)
                self.record_dropped()
                available = self._limit_bytes - os.fstat(self._file).st_size
                if available <= 0:
                    self._rotate()
                    continue
                written = os.write(self._file, data[:available])
            except OSError:
                self.dropped_bytes += len(data)
                self._unrecorded_bytes += len(data)
                return
            data = data[written:]

    def record_dropped(self) -> None:
        """Record the dropped bytes in the index. Raises OSError while the disk is full."""
        if not self._unrecorded_bytes or self._file < 0:
            return
        size = os.fstat(self._file).st_size
        before = [part for part in self._parts if part[0] < size]
        parts = [*before, (size, self._offset_at(size) + self._unrecorded_bytes)]
        self._write_index({self._inode(): parts})
        self._parts, self._unrecorded_bytes = parts, 0

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)

    def _inode(self) -> int:
        return os.fstat(self._file).st_ino

    def _offset_at(self, position: int) -> int:
        """Return the stream offset of a position in the last part."""
        start, offset = self._parts[-1]
        return offset + position - start

    def _parts_of(self, file: int) -> _Parts:
        """Return the parts of this file, perhaps of an earlier writer."""
        return _read_index(self._path).get(os.fstat(file).st_ino, [(0, 0)])

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def _write_index(self, changed: Mapping[int, _Parts], only: Iterable[int] = ()) -> None:
        """Replace the parts of these files; with `only`, drop those of all others."""
        parts_by_inode = {**_read_index(self._path), **changed}
        keep = set(only) or parts_by_inode.keys()
        data = {
            # As older readers know it, where there is no gap.
            str(inode): parts[0][1] if len(parts) == 1 else parts
            for inode, parts in parts_by_inode.items()
            if inode in keep
        }
        new = _index(self._path).with_suffix(".new")
        new.write_text(json.dumps(data), encoding="utf-8")
        new.replace(_index(self._path))

    def _rotate(self) -> None:
        full, size = self._inode(), os.fstat(self._file).st_size
        old, begin = self._parts, self._offset_at(size)
        self._path.replace(_older(self._path))
        fresh = self._open()
        os.close(self._file)
        self._file, self._parts = fresh, [(0, begin)]
        inode = self._inode()
        self._write_index({full: old, inode: self._parts}, only=(full, inode))


def _read_index(path: Path) -> dict[int, _Parts]:
    """Return the parts of each file by inode; empty before the first rotation or gap."""
    try:
        stored = json.loads(_index(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return {
        int(inode): [(0, parts)] if isinstance(parts, int) else [(at, start) for at, start in parts]
        for inode, parts in stored.items()
    }


@dataclass(frozen=True)
class _Segment:
    """Bytes of the stream from `begin` to `end`, at `position` in a file."""

    path: Path
    inode: int
    position: int
    begin: int
    end: int


class LogReader:
    """Reads a stream from any offset, in another process than its writer."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def bounds(self) -> tuple[int, int]:
        """Return the range of offsets that can still be read: [begin, end)."""
        segments = self._segments()
        return (segments[0].begin, segments[-1].end) if segments else (0, 0)

    def unbroken_from(self, offset: int) -> int:
        """Return the offset, from this one on, after which no byte is missing up to the end."""
        begin = end = self.bounds()[1]
        for segment in reversed(self._segments()):
            if segment.end != begin and segment.end > segment.begin:
                break
            begin = min(begin, segment.begin)
        return min(max(offset, begin), end)

    def read(self, offset: int, length: int) -> tuple[int, bytes]:
        """Read up to `length` bytes from `offset`, or from the oldest byte still stored if that is
        later.

        Returns their offset and the bytes, which are empty at the end of the stream.
        """
        for segment in self._segments():
            if offset >= segment.end:
                continue
            offset = max(offset, segment.begin)
            try:
                with segment.path.open("rb") as file:
                    if os.fstat(file.fileno()).st_ino != segment.inode:
                        break  # just rotated: the next call finds it
                    file.seek(segment.position + offset - segment.begin)
                    return offset, file.read(min(length, segment.end - offset))
            except FileNotFoundError:
                break
        return offset, b""

    def _segments(self) -> list[_Segment]:
        """Return the parts of the existing files, older first, without files whose offset is
        unknown."""
        index = _read_index(self._path)
        segments = []
        for path in (_older(self._path), self._path):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            parts = index.get(status.st_ino, [] if index else [(0, 0)])
            ends = [*(position for position, _ in parts[1:]), status.st_size]
            for (position, begin), end in zip(parts, ends, strict=True) if parts else ():
                segment = _Segment(
                    path=path,
                    inode=status.st_ino,
                    position=position,
                    begin=begin,
                    end=begin + max(end - position, 0),
                )
                segments.append(segment)
        return segments
