"""Discarding what a job left on the machine's disks, once nobody needs it there.

What is not the machine's own is left alone: a bucket or a share that a script mounted below its
working directory is its owner's data. The journal and the logs stay until they were read; they go
with the disk, which every cloud discards with a machine that is ended.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from trainer.agent.base.paths import AgentPaths

_MOUNTS = Path("/proc/self/mountinfo")
_POINT = 4  # the field of a line there that names the mount point


def wipe(places: AgentPaths) -> dict[str, Any]:
    """Remove the working directory and the packages of the job's code (the secrets went when the
    program ended). What is said in WIPED; raises nothing: a file that cannot be removed is counted,
    and the rest goes."""
    mounts = mounts_seen()
    failed = 0
    # That of an earlier generation, where this one goes on in it.
    workdir = _real(places.workdir) if places.inherits else places.workdir
    caches = [places.folder / "mounts"] if (places.folder / "mounts").exists() else []
    doomed = [workdir, places.home / "packages", *caches]
    kept = sorted(str(m) for m in mounts if any(m.is_relative_to(_real(d)) for d in doomed))
    for folder in doomed:
        failed += _remove(folder, mounts)
    what = [folder.name for folder in doomed]
    return {"what": what, "how": "removed", "left_mounts": kept, "failed": failed}


def mounts_seen() -> set[Path]:
    """Every mount point that we see; bind mounts, which look like plain folders, among them."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return set()
    return {Path(_unescaped(line.split()[_POINT])) for line in lines}


def _unescaped(text: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _remove(folder: Path, mounts: set[Path]) -> int:
    """Remove a folder and all below it but mount points; the number of things that stayed and were
    to go. Links are removed, never followed."""
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
