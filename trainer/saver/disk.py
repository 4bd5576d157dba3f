"""The local tier: snapshots on the machine's own disk, written past the page cache.

A snapshot is a folder that appears by a rename when all of it is on the disk. It saves a restart on
the same machine from the bucket, and lets a saver that was killed take up its upload again. It is
no place of safety: every cloud discards local disks with a spot machine.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from trainer.hook.spotd_hook.shared_memory import PAGE
from trainer.saver.streams import Filling, chunks_of

_LOG = logging.getLogger(__name__)
_PART = "part.json"
_NAME = re.compile(r"g(\d{8})-s(\d{12})-([A-Za-z0-9]{1,64})-r(\d{5})")


class LocalTier:
    """Below `folder`, the newest `keep` snapshots of each rank. Methods raise OSError: a disk that
    fails costs this tier and nothing else."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self._folder = folder
        self._keep = keep
        folder.mkdir(parents=True, exist_ok=True)
        for stale in folder.glob("*.new"):
            shutil.rmtree(stale, ignore_errors=True)

    def write(self, name: str, filling: Filling, size: int, pause: Callable[[float], None]) -> None:
        """The bytes of one rank's snapshot, as they are filled in. Raises AbandonedError."""
        new = self._folder / f"{name}.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        try:
            with _Direct(new / "data", size) as file:
                for start, end in chunks_of(0, size):
                    filling.wait(end, pause)
                    file.write(filling.view[start : _up(end)], start)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise

    def commit(self, name: str, part: bytes) -> None:
        """Make it a snapshot, described by `part`; older ones than the newest `keep` go."""
        new = self._folder / f"{name}.new"
        with (new / _PART).open("wb") as file:
            file.write(part)
            file.flush()
            os.fsync(file.fileno())
        _sync(new)
        new.rename(self._folder / name)
        _sync(self._folder)
        self._thin_out(name)

    def drop(self, name: str) -> None:
        """One that was not finished."""
        shutil.rmtree(self._folder / f"{name}.new", ignore_errors=True)

    def find(self) -> list[tuple[str, bytes]]:
        """(name, part) of what is there, newest first."""
        found = []
        for path in self._folder.iterdir():
            if _NAME.fullmatch(path.name):
                with contextlib.suppress(OSError):
                    found.append((path.name, (path / _PART).read_bytes()))
        return sorted(found, reverse=True)

    def read(self, name: str, start: int, into: memoryview) -> bool:
        """Fill `into` from byte `start` on; False when it is not all there."""
        try:
            with (self._folder / name / "data").open("rb", buffering=0) as file:
                file.seek(start)
                done = 0
                while done < len(into):
                    count = file.readinto(into[done:])
                    if not count:
                        return False
                    done += count
        except FileNotFoundError:
            return False
        except OSError as error:
            _LOG.warning("%s cannot be read: %s", name, error)
            return False
        return True

    def _thin_out(self, newest: str) -> None:
        match = _NAME.fullmatch(newest)
        rank = match[4] if match else ""
        names = sorted(path.name for path in self._folder.iterdir())
        mine = [n for n in names if (found := _NAME.fullmatch(n)) and found[4] == rank]
        for name in mine[: -self._keep]:
            shutil.rmtree(self._folder / name, ignore_errors=True)


def name_of(folder: str, rank: int) -> str:
    """The name here of one rank's share of what the bucket has below `folder`
    (jobs/ID/gGENERATION/sSTEP-SAVE); names sort by age."""
    return "-".join([*folder.split("/")[-2:], f"r{rank:05d}"])


class _Direct:
    """A file that is written in whole pages from page-aligned memory; where the file system has no
    O_DIRECT (tmpfs, overlays), through the page cache."""

    def __init__(self, path: Path, size: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        self._size = size
        try:
            self._fd = os.open(path, flags | os.O_DIRECT, 0o600)
        except OSError:
            self._fd = os.open(path, flags, 0o600)
        with contextlib.suppress(OSError):  # a file system without it
            os.posix_fallocate(self._fd, 0, _up(size))

    def write(self, view: memoryview, at: int) -> None:
        done = 0
        while done < len(view):
            done += os.pwrite(self._fd, view[done:], at + done)

    def __enter__(self) -> _Direct:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            os.ftruncate(self._fd, self._size)
            os.fsync(self._fd)
        finally:
            os.close(self._fd)


def _up(size: int) -> int:
    return -(-size // PAGE) * PAGE


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
