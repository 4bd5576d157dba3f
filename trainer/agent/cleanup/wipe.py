"""Delete a job's working directory and packages from the machine's disks.

Mounted file systems are left alone: a bucket or share that a script mounted below its working
directory is its owner's data. The journal and logs stay until they have been read; they go with the
disk, which every cloud discards with the machine.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from trainer.agent.base.paths import AgentPaths

_MOUNTS = Path("/proc/self/mountinfo")
_MOUNT_POINT_FIELD = 4  # index of the mount point in a line of mountinfo


def wipe(paths: AgentPaths) -> dict[str, Any]:
    """Delete the working directory and the packages of the job's code.

    Secrets were deleted when the program ended. Returns the data of a WIPED entry. Raises nothing:
    a file that cannot be removed is counted, and the rest is removed.
    """
    mounts = mount_points()
    failed = 0
    # The workdir may be an earlier generation's that this one continues to use.
    workdir = _real(paths.workdir) if paths.inherits_workdir else paths.workdir
    caches = [paths.folder / "mounts"] if (paths.folder / "mounts").exists() else []
    folders = [workdir, paths.home / "packages", *caches]
    left_mounts = sorted(str(m) for m in mounts if any(m.is_relative_to(_real(d)) for d in folders))
    for folder in folders:
        failed += _remove(folder, mounts)
    names = [folder.name for folder in folders]
    return {"what": names, "how": "removed", "left_mounts": left_mounts, "failed": failed}


def mount_points() -> set[Path]:
    """Return every visible mount point, including bind mounts, which look like plain folders."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return set()
    return {Path(_unescape(line.split()[_MOUNT_POINT_FIELD])) for line in lines}


def _unescape(text: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _remove(folder: Path, mounts: set[Path]) -> int:
    """Remove a folder with its content except mount points; returns how many things could not be
    removed.

    Links are removed and not followed.
    """
    try:
        if folder.is_symlink() or not folder.is_dir() or _real(folder) in mounts:
            return 0
        children = list(folder.iterdir())
    except OSError:
        return 1
    failed = sum(_remove_child(child, mounts) for child in children)
    try:
        folder.rmdir()
    except OSError:
        failed += not any(mount.is_relative_to(_real(folder)) for mount in mounts)
    return failed


def _remove_child(child: Path, mounts: set[Path]) -> int:
    try:
        if child.is_dir() and not child.is_symlink():
            return _remove(child, mounts)
        child.unlink()
    except OSError:
        return 1
    return 0
