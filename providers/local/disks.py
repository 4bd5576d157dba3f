"""The disk of a machine that is gone, with what programs of its had mounted there: on a rented
machine that goes with the machine's kernel, and here the kernel stays."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
_MNT_DETACH = 2  # at once, in use or not: linux/fs.h


def discard(folder: Path) -> None:
    """Delete it. Raises OSError; FileNotFoundError where it is not there."""
    with contextlib.suppress(OSError):
        for line in _MOUNTS.read_text("utf-8", "surrogateescape").splitlines():
            point = line.split()[4].replace("\\040", " ")
            if point.startswith(f"{os.path.realpath(folder)}/"):
                _unmount(point)
    shutil.rmtree(folder)


def _unmount(point: str) -> None:
    """Only root may, but for what a user has mounted by FUSE: its own program does that."""
    libc = ctypes.CDLL(None, use_errno=True)
    program = shutil.which("fusermount3") or shutil.which("fusermount")
    if libc.umount2(os.fsencode(point), _MNT_DETACH) and program is not None:
        subprocess.run([program, "-uz", point], capture_output=True, check=False)
