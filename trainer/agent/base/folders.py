"""Creating the folders of a generation."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from trainer.agent.base.paths import AgentPaths, FolderError

_MARK = "home"  # names, inside a folder in memory, the folder on disk that it belongs to


def make_folders(places: AgentPaths) -> None:
    """Create what is missing, and forget folders in memory whose machine's disk is gone.

    Raises PlaceError, OSError.
    """
    for folder in (places.folder, places.logs, places.workdir):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _make_private(places.memory.parent)
    _sweep(places.memory.parent)
    _make_private(places.memory)
    with suppress(OSError):  # memory is full: without the mark the folder is not swept, no more
        (places.memory / _MARK).write_text(str(places.folder), encoding="utf-8")


def _make_private(folder: Path) -> None:
    """Anybody may create names in the parent, so that what is there must be shown to be ours."""
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise FolderError(f"{folder} is not a private folder of this user: remove it and try again")


def _sweep(root: Path) -> None:
    for mark in root.glob(f"*/{_MARK}"):
        try:
            gone = not Path(mark.read_text(encoding="utf-8")).exists()
        except OSError:
            continue  # another agent, starting now, swept it; or it cannot be read
        if gone:
            shutil.rmtree(mark.parent, ignore_errors=True)
