"""Output of the training processes: two files a stream, addressed by the byte since its start.

`<stream>.log` is written; when full it becomes `<stream>.log.1`. A third, tiny file says at which
byte of the stream each of the two begins; it knows them by inode, so that a reader is never misled
in the middle of a rotation.
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
    """Appends to a stream. What the disk does not take is dropped, and counted in `dropped_bytes`:
    output must never hold training up."""

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
                    self._base = self._begin_of(self._file)
                room = self._limit_bytes - os.fstat(self._file).st_size
                if room <= 0:
                    self._rotate()
                    continue
                written = os.write(self._file, data[:room])
            except OSError:
                self.dropped_bytes += len(data)
                return
            data = data[written:]

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)

    def _begin_of(self, file: int) -> int:
        """At which byte of the stream a file begins that an earlier writer may have left."""
        try:
            begins = json.loads(_index(self._path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return 0
        return int(begins.get(str(os.fstat(file).st_ino), 0))

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def _rotate(self) -> None:
        full = os.fstat(self._file)
        begins = {str(full.st_ino): self._base}
        self._path.replace(_older(self._path))
        fresh = self._open()
        os.close(self._file)
        self._file = fresh
        self._base += full.st_size
        begins[str(os.fstat(fresh).st_ino)] = self._base
        new = _index(self._path).with_suffix(".new")
        new.write_text(json.dumps(begins), encoding="utf-8")
        new.replace(_index(self._path))


@dataclass(frozen=True)
class _Piece:
    path: Path
    inode: int
    begin: int
    end: int


class LogReader:
    """Reads a stream from any byte on, in another process than its writer."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def bounds(self) -> tuple[int, int]:
        """First and last byte that can still be read: [begin, end)."""
        pieces = self._pieces()
        return (pieces[0].begin, pieces[-1].end) if pieces else (0, 0)

    def read(self, offset: int, length: int) -> tuple[int, bytes]:
        """Up to `length` bytes from `offset`, or from the oldest byte still there if that is later.

        Returns where they begin, and them; empty at the end of the stream.
        """
        for piece in self._pieces():
            if offset >= piece.end:
                continue
            offset = max(offset, piece.begin)
            try:
                with piece.path.open("rb") as file:
                    if os.fstat(file.fileno()).st_ino != piece.inode:
                        break  # rotated at this moment: the next call sees it
                    file.seek(offset - piece.begin)
                    return offset, file.read(length)
            except FileNotFoundError:
                break
        return offset, b""

    def _pieces(self) -> list[_Piece]:
        """The two files that are there, older first; those whose begin is not known left out."""
        try:
            begins = json.loads(_index(self._path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            begins = None
        found = []
        for path in (_older(self._path), self._path):
            try:
                seen = path.stat()
            except FileNotFoundError:
                continue
            begin = 0 if begins is None else begins.get(str(seen.st_ino))
            if begin is not None:
                found.append(_Piece(path, seen.st_ino, begin, begin + seen.st_size))
        return found
