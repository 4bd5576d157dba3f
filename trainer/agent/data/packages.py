"""The job's code and files: content-addressed archives, cached on the node and unpacked once."""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from spotd.wire import Package
from trainer.agent.base.paths import NodeError

_DIGEST = re.compile(r"[0-9a-f]{64}")
_CHUNK_BYTES = 1 << 20
_MAX_DEPTH = 200  # of folders: what removes them goes down by recursion


class PackageError(NodeError):
    """An archive cannot be stored or unpacked."""


def archive_of(home: Path, digest: str) -> Path:
    """Where it is kept. Raises PackageError."""
    if not _DIGEST.fullmatch(digest):
        raise PackageError(f"{digest!r} is not a sha256 in lower-case hex")
    return home / "packages" / f"{digest}.tar.gz"


def has_package(home: Path, digest: str) -> bool:
    """Whether the archive is in the cache; it was verified when it was put there."""
    return archive_of(home, digest).exists()


def put_package(home: Path, digest: str, source: BinaryIO) -> None:
    """Take the archive from `source` to its end. Raises PackageError when its digest differs."""
    path = archive_of(home, digest)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    found = hashlib.sha256()
    try:
        with new.open("wb") as file:
            while chunk := source.read(_CHUNK_BYTES):
                found.update(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        if found.hexdigest() != digest:
            raise PackageError(f"package {digest} arrived as {found.hexdigest()}: send it again")
        new.replace(path)
    except OSError as error:
        raise PackageError(f"package {digest} cannot be stored: {error}; free some disk") from error
    finally:
        new.unlink(missing_ok=True)


def unpack_packages(home: Path, workdir: Path, packages: Sequence[Package]) -> None:
    """Unpack each at its target; doing it again is harmless.

    Raises PackageError. Of the package that it names nothing is in place then, unless the disk
    failed while files that were whole were moved there.
    """
    for package in packages:
        target = workdir / Path(package.target).expanduser() if package.target else workdir
        try:
            unpack(archive_of(home, package.digest), target / f".{package.digest}.new", target)
        except FileNotFoundError as error:
            raise PackageError(f"package {package.digest} is not here: put it first") from error
        except PackageError:
            raise
        except Exception as error:
            # tarfile raises whatever it meets: ValueError, OverflowError, zlib's own.
            where = package.target or "the workdir"
            raise PackageError(f"package for {where} cannot be unpacked: {error}") from error


def unpack(path: Path, draft: Path, target: Path) -> None:
    """Into the new folder `draft` first: what is there already steers nothing, and what cannot be
    unpacked to its end leaves nothing. Raises PackageError, and whatever tarfile raises."""
    with tarfile.open(path, "r:gz") as archive:
        target.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(draft, ignore_errors=True)  # of an agent that was killed
        draft.mkdir(mode=0o700)
        try:
            archive.extractall(draft, members=_checked(archive, draft))  # noqa: S202 - see _checked
            for new, place in list(_moves(draft, target)):
                new.replace(place)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _moves(new: Path, place: Path) -> Iterator[tuple[Path, Path]]:
    """What puts the content of the folder `new` over that of the folder `place`. Raises
    PackageError where one has a folder and the other has none: a link is no folder."""
    for found in sorted(new.iterdir()):
        there = place / found.name
        if not os.path.lexists(there):
            yield found, there
            continue
        folders = _is_folder(found), _is_folder(there)
        if all(folders):
            yield from _moves(found, there)
        elif any(folders):
            raise PackageError(f"{there} is in the way of the package: move it, or leave it out")
        else:
            yield found, there


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _checked(archive: tarfile.TarFile, draft: Path) -> Iterator[tarfile.TarInfo]:
    """Members that stay inside the folder `draft`, which holds those before them and nothing else.

    Written out, because tarfile's "data" filter is missing from Python 3.10 and 3.11 as many images
    have them, and has let links out where it is not.
    """
    end = -1
    for member in archive:
        if member.offset <= end:
            raise PackageError(f"{member.name!r} in the package leads back: it has no end")
        end = member.offset
        name = PurePosixPath(member.name)
        _check_path(member, name, draft)
        if member.issym():
            # Without ".." behind a name, which might be a link's, it means what it says.
            member.linkname = posixpath.normpath(member.linkname)
            _check_inside(member, PurePosixPath(posixpath.normpath(name.parent / member.linkname)))
        elif member.islnk():
            found = PurePosixPath(member.linkname)
            _check_path(member, found, draft)
            if not (draft / found).is_file():
                raise PackageError(f"{member.name!r} in the package links to what is no file of it")
        elif not (member.isreg() or member.isdir()):
            raise PackageError(f"{member.name!r} in the package is a device or a pipe")
        member.uid, member.gid = os.getuid(), os.getgid()
        member.uname = member.gname = ""
        member.mode = (member.mode & 0o755) | (0o700 if member.isdir() else 0o600)
        yield member


def _check_path(member: tarfile.TarInfo, path: PurePosixPath, draft: Path) -> None:
    """Whether `path` names a place in `draft`, by real folders alone."""
    _check_inside(member, path)
    if len(path.parts) > _MAX_DEPTH:
        raise PackageError(f"{member.name[:80]!r} in the package is too deep in folders")
    if any((draft / part).is_symlink() for part in (path, *path.parents)):
        raise PackageError(f"{member.name!r} in the package goes through a link")


def _check_inside(member: tarfile.TarInfo, path: PurePosixPath) -> None:
    if path.is_absolute() or ".." in path.parts:
        raise PackageError(f"{member.name!r} in the package leads out of its folder")
