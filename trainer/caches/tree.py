"""Scan a cache folder for its files, symbolic links and modification times."""

from __future__ import annotations

import os
import posixpath
import stat
from dataclasses import dataclass
from pathlib import Path

STAGING_FOLDER = ".spotd-cache-new"  # in a cache folder, for files that are being restored
MAX_FILES = 200_000  # per cache, because each has an entry in the index


class TooManyFilesError(Exception):
    """A cache has more than MAX_FILES files."""


@dataclass(frozen=True)
class File:
    """A file or symbolic link. `path` is relative to the cache folder, with `/`.

    `link` is the target of a symbolic link, "" for a file. Links have size, time and mode 0.
    """

    path: str
    size: int
    mtime_us: int
    mode: int
    link: str = ""


def scan(folder: Path) -> tuple[File, ...]:
    """All files and links in the folder, sorted by path; none if it does not exist.

    Skips links out of the folder and special files; files that appear or vanish during the scan may
    be missing. Raises TooManyFilesError, OSError.
    """
    files: list[File] = []
    folders = [""]
    while folders:
        folder_path = folders.pop()
        try:
            entries = list(os.scandir(folder / folder_path))
        except FileNotFoundError:
            continue
        for entry in entries:
            path = posixpath.join(folder_path, entry.name)
            if not path.isprintable() or path == STAGING_FOLDER:
                continue  # a path that is not text cannot go into the index
            if entry.is_dir(follow_symlinks=False):
                folders.append(path)
            elif (file := _file(entry, path)) is not None:
                files.append(file)
        if len(files) > MAX_FILES:
            raise TooManyFilesError(f"it has more than {MAX_FILES} files")
    return tuple(sorted(files, key=lambda file: file.path))


def stays_inside(path: str, link: str) -> bool:
    """Whether a link at `path` to `link` stays in the cache folder."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    return bool(link) and not link.startswith("/") and target.split("/")[0] != ".."


def mtime_us(status: os.stat_result) -> int:
    """Modification time in microseconds, a resolution that every file system stores."""
    return max(status.st_mtime_ns, 0) // 1000


def _file(entry: os.DirEntry[str], path: str) -> File | None:
    try:
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            link = str(Path(entry.path).readlink())
            return File(path, 0, 0, 0, link) if stays_inside(path, link) else None
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return File(path, status.st_size, mtime_us(status), status.st_mode & 0o777)
