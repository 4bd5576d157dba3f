"""Describe the files that a program leaves on its machine when nothing of it was saved."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

AFTER_S = 600.0  # of writing files that nothing saves, before it is reported
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


class LeftFilesWatch:
    """Reports once that a program has been writing files for a while that nothing saves.

    `poll` is called in the agent's loop. The files are searched in a thread, which passes the text
    to `report`.
    """

    def __init__(
        self,
        workdir: Path,
        *,
        report: Callable[[str], None],
        monotonic: Callable[[], float],
        after_s: float = AFTER_S,
    ) -> None:
        self._workdir, self._report, self._monotonic = workdir, report, monotonic
        self._after_s = after_s
        self._look_at_s: float | None = None
        self._found = False

    def poll(self, since_ns: int) -> None:
        """Search for files that changed after `since_ns`, every `after_s` seconds."""
        now_s = self._monotonic()
        if self._look_at_s is None:
            self._look_at_s = now_s + self._after_s
        elif now_s >= self._look_at_s and not self._found:
            self._look_at_s = now_s + self._after_s
            threading.Thread(target=self._look, args=(since_ns,), daemon=True).start()

    def _look(self, since_ns: int) -> None:
        text = describe_left_files(self._workdir, since_ns=since_ns)
        if text != NONE and not self._found:
            self._found = True
            self._report(text)
