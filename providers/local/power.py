"""The switch of a local machine, for those who are on it: a program on its path, of a name that no
computer has, so that nobody ever switches off the wrong one."""

from __future__ import annotations

import os
import select
import signal
import socket
from pathlib import Path

POWER_OFF = "spotd-local-power-off"


class PoweredOff(Exception):
    """Somebody on the machine switched it off."""


class Switch:
    """The switch of this process, the machine, put on its disk; `folder` is for its path. To be
    made in the main thread."""

    def __init__(self, home: Path) -> None:
        self.folder = home / ".power"
        self.folder.mkdir(mode=0o700, exist_ok=True)
        # A signal may come to any thread, and then ends no wait of the main one; a byte does.
        self._off, tell = socket.socketpair()
        tell.setblocking(False)
        self._tell = tell  # kept open
        signal.set_wakeup_fd(tell.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGPWR, lambda *_: None)
        program = self.folder / POWER_OFF
        program.write_text(f"#!/bin/sh\nkill -PWR {os.getpid()}\n", encoding="ascii")
        program.chmod(0o700)

    def wait_unless_off(self, source: socket.socket) -> None:
        """Return when `source` can be read. Raises PoweredOff."""
        if self._off in select.select([source, self._off], [], [])[0]:
            raise PoweredOff
