"""Choose which files on a machine are the outputs of its job.

A job file may name them by patterns. Otherwise they are all files below the workdir that changed
since the program started, without caches and environments, up to a total size.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.directory.units import IGNORED_FOLDERS

MAX_FILES = 50_000  # in one manifest
MAX_LOOKED_AT = 500_000  # below a workdir without `outputs`: that takes some ten seconds
# Folders that programs make again by themselves, anywhere below the workdir.
CACHES = IGNORED_FOLDERS | {"node_modules", "venv", "wandb"}


@dataclass(frozen=True)
class OutputFile:
    """A file to upload. `path` is its name among the outputs, relative and with `/`."""

    path: str
    source: Path
    size: int
    modified_ns: int
    mode: int

    @property
    def group(self) -> str:
        """The first part of the path: a folder, or the file itself."""
        return self.path.partition("/")[0]


@dataclass(frozen=True)
class Selection:
    """The files to upload, and messages about everything that is not."""

    files: tuple[OutputFile, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def select_changed(
    workdir: Path, *, since_ns: int, max_bytes: int, skip: Callable[[Path], bool] = lambda _: False
) -> Selection:
    """Select the files below `workdir` that changed after `since_ns`, up to `max_bytes` in total.

    Folders and files directly in the workdir are taken whole or not at all, the smallest first.
    Names there that begin with a dot, CACHES, other file systems and files for which `skip` is true
    are left out.
    """
    groups: dict[str, list[OutputFile]] = {}
    problems = []
    count = 0
    for looked_at, path in enumerate(_walk(workdir, ignore_caches=True)):
        if looked_at >= MAX_LOOKED_AT:
            text = f"more than {MAX_LOOKED_AT:,} files are below the workdir: name those to upload"
            problems.append(f"{text} in spotd: {{outputs: [...]}}")
            break
        if _changed_ns(path) <= since_ns:
            continue
        relative = path.relative_to(workdir).as_posix()
        if relative.startswith(".") or skip(path):
            continue
        file = _output_file(path, relative, below=workdir)
        if file is None:
            continue
        count += 1
        if count > MAX_FILES:
            problems.append(
                f"more than {MAX_FILES:,} files changed: name those to upload in outputs"
            )
            break
        groups.setdefault(file.group, []).append(file)
    sizes = {name: sum(file.size for file in files) for name, files in groups.items()}
    chosen: list[OutputFile] = []
    left_out: list[str] = []
    total = 0
    for name in sorted(groups, key=lambda name: (sizes[name], name)):
        total += sizes[name]
        if total > max_bytes:
            left_out.append(f"{name} ({format_size(sizes[name])})")
        else:
            chosen += sorted(groups[name], key=lambda file: file.path)
    if left_out:
        problems.append(
            f"{', '.join(left_out)}: more than the {format_size(max_bytes)} that are uploaded "
            "unless the job file names them in spotd: {outputs: [...]}"
        )
    return Selection(tuple(chosen), tuple(problems))


def select_matching(
    workdir: Path,
    *,
    patterns: Sequence[str],
    home: Path,
    skip: Callable[[Path], bool] = lambda _: False,
) -> Selection:
    """Select the files that match a pattern, in the order of the patterns.

    A pattern is relative to `workdir`, absolute, or relative to `home` (`~/...`). `*` matches
    within a name and `**` any folders. A folder stands for everything below it. Files for which
    `skip` is true are left out.
    """
    files: dict[str, OutputFile] = {}
    problems: list[str] = []
    for pattern in patterns:
        root, relative = _anchor(pattern, workdir=workdir, home=home)
        matched = False
        for match in sorted(root.glob(relative) if relative else [root]):
            for path in _walk(match, ignore_caches=False) if match.is_dir() else [match]:
                matched = True
                name = path.relative_to(root).as_posix()
                file = None if skip(path) else _output_file(path, name, below=None)
                if file is not None and files.setdefault(name, file).source != file.source:
                    problems.append(f"{path}: another output has the name {name}")
        if not matched:
            problems.append(f"{pattern!r} in outputs matches no file")
    if len(files) > MAX_FILES:
        text = f"{len(files):,} files match outputs, of which the first {MAX_FILES:,} are uploaded"
        problems.append(text)
    return Selection(tuple(files.values())[:MAX_FILES], tuple(problems))


def _anchor(pattern: str, *, workdir: Path, home: Path) -> tuple[Path, str]:
    """Return the folder that a pattern is relative to, and the pattern without it."""
    for prefix, root in (("~/", home), ("/", Path("/"))):
        if pattern.startswith(prefix):
            return root, pattern.removeprefix(prefix).strip("/")
    relative = pattern.removeprefix("./").strip("/")
    return workdir, "" if relative == "." else relative


def _walk(top: Path, *, ignore_caches: bool) -> Iterator[Path]:
    """Yield everything below `top` that is no folder; links to folders are not followed."""
    try:
        device = top.stat().st_dev
    except OSError:
        return
    for parent, folders, names in os.walk(top):
        folders[:] = sorted(
            name
            for name in folders
            if not (ignore_caches and name in CACHES) and _is_on(device, Path(parent, name))
        )
        for name in sorted(names):
            yield Path(parent, name)


def _is_on(device: int, folder: Path) -> bool:
    try:
        return folder.lstat().st_dev == device
    except OSError:
        return False


def _output_file(path: Path, name: str, *, below: Path | None) -> OutputFile | None:
    """Describe a regular file, or a link to one; None for others.

    With `below`, a link must lead to a file below that folder.
    """
    try:
        name.encode()
        status = path.stat()
    except (OSError, UnicodeEncodeError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    if below is not None and path.is_symlink():
        target = Path(os.path.realpath(path))
        if not target.is_relative_to(os.path.realpath(below)):
            return None
    return OutputFile(
        path=name,
        source=path,
        size=status.st_size,
        modified_ns=status.st_mtime_ns,
        mode=status.st_mode & 0o777,
    )


def _changed_ns(path: Path) -> int:
    """Return when the content or the attributes of a file or link last changed; 0 if it is gone."""
    try:
        status = path.lstat()
    except OSError:
        return 0
    return max(status.st_mtime_ns, status.st_ctime_ns)


def format_size(size: int) -> str:
    """Format a number of bytes, like 1.5 GB."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} B"
