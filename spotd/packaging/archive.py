"""Workdirs and file mounts as archives that depend on nothing but their content.

Sorted names, one fixed time, no owners: the same files give the same bytes, so that what the
daemon has already is not sent again.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import stat
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from spotd.base.errors import ExitCode, UserError
from spotd.base.text import size
from spotd.packaging.ignore import Filter, file_name

MAX_BYTES = 1 << 30
_TIME = 315_532_800  # 1980-01-01, the oldest that every archive format can say


@dataclass(frozen=True)
class FileToPack:
    """One thing to pack: `name` in the archive, `path` on this machine."""

    name: str
    path: Path
    mode: int
    bytes: int


@dataclass(frozen=True)
class PackedArchive:
    """A finished archive: sha256 in hex, and its length."""

    digest: str
    length: int


def find_all(root: Path, warn: Callable[[str], None]) -> list[FileToPack]:
    """Everything under the folder `root` that is to be packed, sorted; or `root` itself when it is
    a file. What cannot be packed is named through `warn`."""
    if not root.is_dir():
        mode = root.stat().st_mode
        return [FileToPack(root.name, root, mode, root.stat().st_size)]
    found = sorted(_walk(root, "", Filter(file_name(root)), warn), key=lambda item: item.name)
    _check_size(root, found)
    return found


def _walk(
    folder: Path, prefix: str, above: Filter, warn: Callable[[str], None]
) -> Iterator[FileToPack]:
    rules = above.enter(folder, prefix, warn)
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise _unreadable(folder, error) from None
    for entry in entries:
        name, path = prefix + entry.name, folder / entry.name
        is_folder = entry.is_dir(follow_symlinks=False)
        if rules.leaves_behind(name, is_folder):
            continue
        info = entry.stat(follow_symlinks=False)
        if is_folder:
            yield FileToPack(name, path, info.st_mode, 0)
            yield from _walk(path, f"{name}/", rules, warn)
        elif stat.S_ISREG(info.st_mode):
            yield FileToPack(name, path, info.st_mode, info.st_size)
        elif not stat.S_ISLNK(info.st_mode):
            warn(f"{path} is left out: it is a socket, a pipe or a device")
        elif _leads_outside(name, path):
            target = path.readlink()
            warn(f"{path} is left out: it is a link to {target}, which is not on the machine")
        else:
            yield FileToPack(name, path, info.st_mode, 0)


def _leads_outside(name: str, path: Path) -> bool:
    """A link that the node refuses to unpack, because it leads out of the archive."""
    target = str(path.readlink())
    if target.startswith("/"):
        return True
    folder = name.rpartition("/")[0] or "."
    return os.path.normpath(f"{folder}/{target}").split("/")[0] == ".."


def _check_size(root: Path, found: list[FileToPack]) -> None:
    total = sum(item.bytes for item in found)
    if total <= MAX_BYTES:
        return
    tops: Counter[str] = Counter()
    for item in found:
        top, slash, _ = item.name.partition("/")
        tops[top + slash] += item.bytes
    biggest = "".join(f"\n  {size(count):>10}  {name}" for name, count in tops.most_common(5))
    raise UserError(
        f"{root} has {size(total)} to pack; {size(MAX_BYTES)} is the most. The biggest:{biggest}",
        "list what the job does not need in .skyignore, and read data from a bucket",
        ExitCode.USAGE,
    )


def write_archive(found: list[FileToPack], file: IO[bytes], single: str = "") -> PackedArchive:
    """Write the archive to `file`. `single` renames the one file of a mount that is a file.

    Raises UserError for a file that cannot be read, or changes under our hands.
    """
    hasher = _Hasher(file)
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=hasher, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for item in found:
            try:
                _add(archive, item, single or item.name)
            except OSError as error:
                raise _unreadable(item.path, error) from None
    return PackedArchive(hasher.digest(), hasher.length)


def _add(archive: tarfile.TarFile, item: FileToPack, name: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.mtime = _TIME
    entry.mode = 0o755 if item.mode & 0o100 or stat.S_ISDIR(item.mode) else 0o644
    if stat.S_ISDIR(item.mode):
        entry.type = tarfile.DIRTYPE
        archive.addfile(entry)
    elif stat.S_ISLNK(item.mode):
        entry.type = tarfile.SYMTYPE
        entry.linkname = str(item.path.readlink())
        archive.addfile(entry)
    else:
        entry.size = item.bytes
        with item.path.open("rb") as content:
            archive.addfile(entry, content)


def _unreadable(path: Path, error: OSError) -> UserError:
    why = error.strerror or "it changed while it was packed"
    return UserError(
        f"cannot pack {path}: {why}",
        "make it readable, or list it in .skyignore",
        ExitCode.USAGE,
    )


class _Hasher:
    """A file to write to, that knows the digest of what was written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self.length = 0

    def write(self, data: bytes) -> int:
        self._sha256.update(data)
        self.length += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def digest(self) -> str:
        return self._sha256.hexdigest()
