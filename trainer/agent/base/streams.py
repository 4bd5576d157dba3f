"""Rotated logs of the training processes, addressed by byte offset since the stream's start.

`<stream>.log` is written; when full it becomes `<stream>.log.1`. A small index file records the
stream offset at which each of the two begins. It identifies them by inode, so that a reader is
never misled during a rotation.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

LIMIT_BYTES = 16 << 20


def _older(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def _index(path: Path) -> Path:
    return path.with_name(path.name + ".index")


class LogWriter:
    """Appends to a stream. Bytes that the disk does not accept are dropped and counted in
    `dropped_bytes`: output must never block training."""

    def __init__(self, path: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self._path = path
        self._limit_bytes = limit_bytes
        self._base = 0
        self.dropped_bytes = 0
        self._file = -1

    def write(self, data: bytes) -> None:
        while data:
            try:
                if self._file < 0:
                    self._file = self._open()
                    self._base = self._offset_of(self._file)
                available = self._limit_bytes - os.fstat(self._file).st_size
                if available <= 0:
                    self._rotate()
                    continue
                written = os.write(self._file, data[:available])
            except OSError:
                self.dropped_bytes += len(data)
                return
            data = data[written:]

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)

    def _offset_of(self, file: int) -> int:
        """Return the stream offset at which this file, perhaps of an earlier writer, begins."""
        try:
            offsets = json.loads(_index(self._path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return 0
        return int(offsets.get(str(os.fstat(file).st_ino), 0))

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def _rotate(self) -> None:
        full = os.fstat(self._file)
        offsets = {str(full.st_ino): self._base}
        self._path.replace(_older(self._path))
        fresh = self._open()
        os.close(self._file)
        self._file = fresh
        self._base += full.st_size
        offsets[str(os.fstat(fresh).st_ino)] = self._base
        new = _index(self._path).with_suffix(".new")
        new.write_text(json.dumps(offsets), encoding="utf-8")
        new.replace(_index(self._path))


@dataclass(frozen=True)
class _Segment:
    path: Path
    inode: int
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
                    file.seek(offset - segment.begin)
                    return offset, file.read(length)
            except FileNotFoundError:
                break
        return offset, b""

    def _segments(self) -> list[_Segment]:
        """Return the existing files, older first, without those whose offset is unknown."""
        try:
            offsets = json.loads(_index(self._path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            offsets = None
        segments = []
        for path in (_older(self._path), self._path):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            begin = 0 if offsets is None else offsets.get(str(status.st_ino))
            if begin is not None:
                end = begin + status.st_size
                segments.append(_Segment(path=path, inode=status.st_ino, begin=begin, end=end))
        return segments
