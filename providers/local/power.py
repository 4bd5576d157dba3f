"""The switch of a local machine, for those who are on it: a program on its path, of a name that no
computer has, so that nobody ever switches off the wrong one."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import FrameType

POWER_OFF = "spotd-local-power-off"


class PoweredOff(Exception):
    """Somebody on the machine switched it off."""


def install(home: Path) -> Path:
    """Put the switch of this process, the machine, on its disk; the folder for its path."""
    folder = home / ".power"
    folder.mkdir(mode=0o700, exist_ok=True)
    switch = folder / POWER_OFF
    switch.write_text(f"#!/bin/sh\nkill -PWR {os.getpid()}\n", encoding="ascii")
    switch.chmod(0o700)
    signal.signal(signal.SIGPWR, _switched)
    return folder


def _switched(_number: int, _frame: FrameType | None) -> None:
    raise PoweredOff
