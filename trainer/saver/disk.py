"""The local tier: snapshots on the machine's own disk, written past the page cache.

A snapshot is a folder that is renamed into place once it is complete. It spares a restart on the
same machine the download, and lets a restarted saver continue an upload. It does not make data
safe: every cloud discards local disks with a spot machine.
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
from trainer.saver.streams import FillingSlot, chunk_ranges

_LOG = logging.getLogger(__name__)
_PART = "part.json"
_NAME = re.compile(r"g(\d{8})-s(\d{12})-([A-Za-z0-9]{1,64})-r(\d{5})")


class LocalTier:
    """The newest `keep` snapshots of each rank, in `folder`.

    Methods raise OSError: a failing disk costs this tier and nothing else.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self._folder = folder
        self._max_snapshots = keep
        folder.mkdir(parents=True, exist_ok=True)
        for stale in folder.glob("*.new"):
            shutil.rmtree(stale, ignore_errors=True)

    def write(
        self, name: str, slot: FillingSlot, size: int, pause: Callable[[float], None]
    ) -> None:
        """Write one rank's snapshot while its slot is being filled. Raises AbandonedError."""
        new = self._folder / f"{name}.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        try:
            with _Direct(new / "data", size) as file:
                for start, end in chunk_ranges(0, size):
                    slot.wait(end, pause)
                    file.write(slot.view[start : _round_up(end)], start)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise

    def commit(self, name: str, part: bytes) -> None:
        """Publish a written snapshot, described by `part`, and delete all but the newest `keep`."""
        new = self._folder / f"{name}.new"
        with (new / _PART).open("wb") as file:
            file.write(part)
            file.flush()
            os.fsync(file.fileno())
        _fsync_folder(new)
        new.rename(self._folder / name)
        _fsync_folder(self._folder)
        self._delete_old(name)

    def discard(self, name: str) -> None:
        """Delete a snapshot that was not finished."""
        shutil.rmtree(self._folder / f"{name}.new", ignore_errors=True)

    def find(self) -> list[tuple[str, bytes]]:
        """Return (name, part) of each snapshot, newest first."""
        snapshots = []
        for path in self._folder.iterdir():
            if _NAME.fullmatch(path.name):
                with contextlib.suppress(OSError):
                    snapshots.append((path.name, (path / _PART).read_bytes()))
        return sorted(snapshots, reverse=True)

    def read(self, name: str, start: int, into: memoryview) -> bool:
        """Fill `into` from byte `start` on; return False if not all of it is there."""
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

    def _delete_old(self, newest: str) -> None:
        match = _NAME.fullmatch(newest)
        rank = match[4] if match else ""
        names = sorted(path.name for path in self._folder.iterdir())
        same_rank = [n for n in names if (parsed := _NAME.fullmatch(n)) and parsed[4] == rank]
        for name in same_rank[: -self._max_snapshots]:
            shutil.rmtree(self._folder / name, ignore_errors=True)


def name_of(folder: str, rank: int) -> str:
    """Return the local name of one rank's share of the snapshot at the store folder `folder`.

    `folder` is jobs/ID/gGENERATION/sSTEP-SAVE; names sort by age.
    """
    return "-".join([*folder.split("/")[-2:], f"r{rank:05d}"])


class _Direct:
    """A file written in whole pages from page-aligned memory.

    Goes through the page cache where the file system has no O_DIRECT (tmpfs, overlays).
    """

    def __init__(self, path: Path, size: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        self._size = size
        try:
            self._fd = os.open(path, flags | os.O_DIRECT, 0o600)
        except OSError:
            self._fd = os.open(path, flags, 0o600)
        with contextlib.suppress(OSError):  # not supported by every file system
            os.posix_fallocate(self._fd, 0, _round_up(size))

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


def _round_up(size: int) -> int:
    return -(-size // PAGE) * PAGE


def _fsync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
