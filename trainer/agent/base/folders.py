"""Create the folders of a generation."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from trainer.agent.base.paths import AgentPaths, FolderError

_MARK = "home"  # file in a memory folder that names the folder on disk it belongs to


def make_folders(paths: AgentPaths) -> None:
    """Create missing folders, and delete folders in memory whose folder on disk is gone.

    Raises FolderError and OSError.
    """
    for folder in (paths.folder, paths.logs, paths.workdir):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _make_private(paths.memory.parent)
    _delete_stale(paths.memory.parent)
    _make_private(paths.memory)
    with suppress(OSError):  # memory is full: without the mark the folder is only never cleaned up
        (paths.memory / _MARK).write_text(str(paths.folder), encoding="utf-8")


def _make_private(folder: Path) -> None:
    """Create a folder with mode 0700. Others can write to its parent, so check who owns it."""
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise FolderError(f"{folder} is not a private folder of this user: remove it and try again")


def _delete_stale(root: Path) -> None:
    for mark in root.glob(f"*/{_MARK}"):
        try:
            gone = not Path(mark.read_text(encoding="utf-8")).exists()
        except OSError:
            continue  # deleted by another agent that starts now, or unreadable
        if gone:
            shutil.rmtree(mark.parent, ignore_errors=True)
