"""Pack workdirs and file mounts into reproducible archives.

Names are sorted, the time is fixed and owners are left out, so that the same files give the same
bytes, and an archive that the daemon already has is not sent again.
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
from spotd.packaging.ignore import Filter, ignore_file_name

MAX_BYTES = 1 << 30
_MTIME_S = 315_532_800  # 1980-01-01, the earliest time that every archive format can represent


@dataclass(frozen=True)
class FileToPack:
    """A file, folder or link to pack: its `name` in the archive and `path` on this machine."""

    name: str
    path: Path
    mode: int
    bytes: int


@dataclass(frozen=True)
class PackedArchive:
    """The SHA-256 of an archive in hex, and its length in bytes."""

    digest: str
    length: int


def find_files(root: Path, warn: Callable[[str], None]) -> list[FileToPack]:
    """Return what to pack of the folder `root`, sorted by name; or `root` itself if it is a file.

    `warn` is called for everything that cannot be packed. Raises UserError for a folder that cannot
    be read, or with more than MAX_BYTES.
    """
    if not root.is_dir():
        mode = root.stat().st_mode
        return [FileToPack(root.name, root, mode, root.stat().st_size)]
    files = sorted(
        _walk(root, "", Filter(ignore_file_name(root)), warn), key=lambda item: item.name
    )
    _check_size(root, files)
    return files


def _walk(
    folder: Path, prefix: str, parent: Filter, warn: Callable[[str], None]
) -> Iterator[FileToPack]:
    filter_ = parent.for_folder(folder, prefix, warn)
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise _read_error(folder, error) from None
    for entry in entries:
        name, path = prefix + entry.name, folder / entry.name
        is_folder = entry.is_dir(follow_symlinks=False)
        if filter_.excludes(name, is_folder):
            continue
        info = entry.stat(follow_symlinks=False)
        if is_folder:
            yield FileToPack(name, path, info.st_mode, 0)
            yield from _walk(path, f"{name}/", filter_, warn)
        elif stat.S_ISREG(info.st_mode):
            yield FileToPack(name, path, info.st_mode, info.st_size)
        elif not stat.S_ISLNK(info.st_mode):
            warn(f"{path} is left out: it is a socket, a pipe or a device")
        elif _points_outside(name, path):
            target = path.readlink()
            warn(f"{path} is left out: it is a link to {target}, which is not on the machine")
        else:
            yield FileToPack(name, path, info.st_mode, 0)


def _points_outside(name: str, path: Path) -> bool:
    """Return whether a link points outside of the archive; the node refuses to unpack those."""
    target = str(path.readlink())
    if target.startswith("/"):
        return True
    folder = name.rpartition("/")[0] or "."
    return os.path.normpath(f"{folder}/{target}").split("/")[0] == ".."


def _check_size(root: Path, files: list[FileToPack]) -> None:
    total = sum(item.bytes for item in files)
    if total <= MAX_BYTES:
        return
    size_by_top: Counter[str] = Counter()
    for item in files:
        top, slash, _ = item.name.partition("/")
        size_by_top[top + slash] += item.bytes
    largest = "".join(
        f"\n  {size(count):>10}  {name}" for name, count in size_by_top.most_common(5)
    )
    raise UserError(
        f"{root} has {size(total)} to pack; {size(MAX_BYTES)} is the most. The biggest:{largest}",
        "list what the job does not need in .skyignore, and read data from a bucket",
        ExitCode.USAGE,
    )


def write_archive(files: list[FileToPack], file: IO[bytes], single_name: str = "") -> PackedArchive:
    """Write the archive to `file`. `single_name` renames the file if only one is packed.

    Raises UserError for a file that cannot be read, or that changes while it is packed.
    """
    hasher = _Hasher(file)
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=hasher, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for item in files:
            try:
                _add(archive, item, single_name or item.name)
            except OSError as error:
                raise _read_error(item.path, error) from None
    return PackedArchive(hasher.digest(), hasher.length)


def _add(archive: tarfile.TarFile, item: FileToPack, name: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.mtime = _MTIME_S
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


def _read_error(path: Path, error: OSError) -> UserError:
    reason = error.strerror or "it changed while it was packed"
    return UserError(
        f"cannot pack {path}: {reason}",
        "make it readable, or list it in .skyignore",
        ExitCode.USAGE,
    )


class _Hasher:
    """A writable file that computes the SHA-256 of the bytes written."""

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
