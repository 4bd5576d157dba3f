"""Delete the disk of an ended machine, including file systems that its programs mounted there.

A real machine's mounts end with its kernel; here the kernel stays, so they have to be unmounted.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
_MNT_DETACH = 2  # lazy unmount, even if in use: linux/fs.h


def discard(folder: Path) -> None:
    """Unmount everything below `folder` and delete it. Raises OSError."""
    with contextlib.suppress(OSError):
        for line in _MOUNTS.read_text("utf-8", "surrogateescape").splitlines():
            point = line.split()[4].replace("\\040", " ")
            if point.startswith(f"{os.path.realpath(folder)}/"):
                _unmount(point)
    shutil.rmtree(folder)


def _unmount(point: str) -> None:
    """Only root may call umount2; a user's FUSE mounts are unmounted by fusermount."""
    libc = ctypes.CDLL(None, use_errno=True)
    program = shutil.which("fusermount3") or shutil.which("fusermount")
    if libc.umount2(os.fsencode(point), _MNT_DETACH) and program is not None:
        subprocess.run([program, "-uz", point], capture_output=True, check=False)
