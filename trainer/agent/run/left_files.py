"""Describe the files that a program leaves on its machine when nothing of it was saved."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

MOST_FILES = 50_000  # looked at
NAMED = 3
NONE = "no new files below its workdir"
_IGNORED = frozenset({"__pycache__", "node_modules", "venv", "wandb"})


def describe_left_files(workdir: Path, *, since_ns: int) -> str:
    """Return the largest files below `workdir` that changed after `since_ns`, and how many more.

    Names that begin with a dot are left out. `since_ns` is compared with modification times.
    """
    sizes: dict[str, int] = {}
    for looked_at, (path, stat) in enumerate(_files(workdir)):
        if looked_at >= MOST_FILES:
            break
        if stat.st_mtime_ns > since_ns:
            sizes[path] = stat.st_size
    if not sizes:
        return NONE
    largest = sorted(sizes, key=lambda path: (-sizes[path], path))[:NAMED]
    text = ", ".join(f"{path} ({_size(sizes[path])})" for path in largest)
    more = len(sizes) - len(largest)
    return f"{text} and {more} more files" if more else text


def _files(workdir: Path) -> Iterator[tuple[str, os.stat_result]]:
    for parent, folders, names in os.walk(workdir):
        folders[:] = [n for n in sorted(folders) if not n.startswith(".") and n not in _IGNORED]
        for name in names:
            path = Path(parent, name)
            try:
                stat = path.lstat()
            except OSError:
                continue
            if not name.startswith(".") and path.is_file() and not path.is_symlink():
                yield path.relative_to(workdir).as_posix(), stat


def _size(size: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} B"
