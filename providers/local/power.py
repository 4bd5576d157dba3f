"""Power off a local machine from inside: a program on its PATH.

No real computer has a program of this name, so it can never switch off the wrong machine.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from pathlib import Path

POWER_OFF = "spotd-local-power-off"


class PoweredOff(Exception):
    """The machine was switched off from inside."""


class PowerSwitch:
    """Installs the power-off program on the machine's disk, in `folder`. Create it in the main
    thread of the machine's process."""

    def __init__(self, home: Path) -> None:
        self.folder = home / ".power"
        self.folder.mkdir(mode=0o700, exist_ok=True)
        # Another thread may get the signal, which would not wake the main thread; a byte does.
        self._off, wakeup = socket.socketpair()
        wakeup.setblocking(False)
        self._wakeup = wakeup  # must stay open
        signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGPWR, lambda *_: None)
        program = self.folder / POWER_OFF
        program.write_text(f"#!/bin/sh\nkill -PWR {os.getpid()}\n", encoding="ascii")
        program.chmod(0o700)

    def wait_unless_off(self, source: socket.socket) -> None:
        """Wait until `source` is readable. Raises PoweredOff."""
        if self._off in select.select([source, self._off], [], [])[0]:
            raise PoweredOff
