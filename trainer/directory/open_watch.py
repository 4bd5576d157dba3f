"""Tell which files the program has opened, by the kernel's inotify.

Access times would tell the same on some mounts only: `noatime` is common on rented machines.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

MAX_FOLDERS = 1000  # the kernel allows a user several thousand watches in all
_IN_OPEN, _IN_Q_OVERFLOW, _IN_ISDIR = 0x20, 0x4000, 0x40000000  # <sys/inotify.h>
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name


class OpenWatch:
    """Watches files below a folder, from its creation on.

    If the kernel allows no watch, or loses events, every file counts as opened: then nobody is
    warned without reason.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self._wanted = {str(path) for path in files}
        self._opened: set[str] = set()
        self._folders: dict[int, str] = {}
        self._descriptor = -1
        try:
            self._watch({os.path.dirname(path) for path in self._wanted})  # noqa: PTH120
        except OSError:
            self._give_up()

    def _watch(self, folders: set[str]) -> None:
        if len(folders) > MAX_FOLDERS:
            raise OSError("too many folders")
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        for folder in folders:
            number = libc.inotify_add_watch(self._descriptor, os.fsencode(folder), _IN_OPEN)
            if number < 0:
                raise OSError(ctypes.get_errno(), "inotify_add_watch")
            self._folders[number] = folder

    def _give_up(self) -> None:
        self._opened = set(self._wanted)
        self.close()

    def opened(self) -> set[str]:
        """Return the paths that were opened so far."""
        while self._descriptor >= 0:
            try:
                events = os.read(self._descriptor, 1 << 16)
            except BlockingIOError:
                break
            except OSError:
                self._give_up()
                break
            self._read(events)
        return self._opened

    def _read(self, events: bytes) -> None:
        at = 0
        while at < len(events):
            number, mask, _, length = _EVENT.unpack_from(events, at)
            at += _EVENT.size + length
            if mask & _IN_Q_OVERFLOW:
                self._give_up()
                return
            name = os.fsdecode(events[at - length : at].rstrip(b"\0"))
            path = f"{self._folders.get(number, '')}/{name}"
            if not mask & _IN_ISDIR and path in self._wanted:
                self._opened.add(path)

    def close(self) -> None:
        """End the watch; what was opened stays known."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
