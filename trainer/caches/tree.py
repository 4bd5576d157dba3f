"""What a cache folder holds: files and links, and when they were last written."""

from __future__ import annotations

import os
import posixpath
import stat
from dataclasses import dataclass
from pathlib import Path

NEW = ".spotd-cache-new"  # in a cache folder: what is being restored
MOST_FILES = 200_000  # in one cache: each has its lines in the index


class TooManyError(Exception):
    """A cache has more files than are kept."""


@dataclass(frozen=True)
class File:
    """`path` is relative to the folder, with `/`; of a symbolic link, `link` says where it leads,
    and it has no size."""

    path: str
    size: int
    mtime_us: int
    mode: int
    link: str = ""


def look(folder: Path) -> tuple[File, ...]:
    """By path. A folder that is not there is empty; what comes and goes meanwhile may be missing.
    Links out of the folder, pipes and the like are no part of it. Raises TooManyError, OSError."""
    found: list[File] = []
    folders = [""]
    while folders:
        below = folders.pop()
        try:
            entries = list(os.scandir(folder / below))
        except FileNotFoundError:
            continue
        for entry in entries:
            path = posixpath.join(below, entry.name)
            if not path.isprintable() or path == NEW:
                continue  # what is no text could not be told to another machine
            if entry.is_dir(follow_symlinks=False):
                folders.append(path)
            elif (file := _file(entry, path)) is not None:
                found.append(file)
        if len(found) > MOST_FILES:
            raise TooManyError(f"it has more than {MOST_FILES} files")
    return tuple(sorted(found, key=lambda file: file.path))


def leads_inside(path: str, link: str) -> bool:
    """Whether a link at `path` stays in its folder."""
    end = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    return bool(link) and not link.startswith("/") and end.split("/")[0] != ".."


def mtime_us(status: os.stat_result) -> int:
    """As every disk can tell it."""
    return max(status.st_mtime_ns, 0) // 1000


def _file(entry: os.DirEntry[str], path: str) -> File | None:
    try:
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            link = str(Path(entry.path).readlink())
            return File(path, 0, 0, 0, link) if leads_inside(path, link) else None
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return File(path, status.st_size, mtime_us(status), status.st_mode & 0o777)
