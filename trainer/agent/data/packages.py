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
_MAX_DEPTH = 200  # of folders, because removing them is recursive


class PackageError(NodeError):
    """An archive cannot be stored or unpacked."""


def archive_path(home: Path, digest: str) -> Path:
    """Return the path of an archive in the cache. Raises PackageError for an invalid digest."""
    if not _DIGEST.fullmatch(digest):
        raise PackageError(f"{digest!r} is not a sha256 in lower-case hex")
    return home / "packages" / f"{digest}.tar.gz"


def has_package(home: Path, digest: str) -> bool:
    """Whether the archive is in the cache; it was verified when it was stored."""
    return archive_path(home, digest).exists()


def put_package(home: Path, digest: str, source: BinaryIO) -> None:
    """Store the archive read from `source`. Raises PackageError if its digest differs."""
    path = archive_path(home, digest)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    received = hashlib.sha256()
    try:
        with new.open("wb") as file:
            while chunk := source.read(_CHUNK_BYTES):
                received.update(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        if received.hexdigest() != digest:
            raise PackageError(f"package {digest} arrived as {received.hexdigest()}: send it again")
        new.replace(path)
    except OSError as error:
        raise PackageError(f"package {digest} cannot be stored: {error}; free some disk") from error
    finally:
        new.unlink(missing_ok=True)


def unpack_packages(home: Path, workdir: Path, packages: Sequence[Package]) -> None:
    """Unpack each package at its target; idempotent.

    Raises PackageError. Nothing of the failed package is in place then, unless the disk failed
    while complete files were moved there.
    """
    for package in packages:
        target = workdir / Path(package.target).expanduser() if package.target else workdir
        try:
            unpack(archive_path(home, package.digest), target / f".{package.digest}.new", target)
        except FileNotFoundError as error:
            raise PackageError(
                f"package {package.digest} is not on this machine: send it first"
            ) from error
        except PackageError:
            raise
        except Exception as error:
            # tarfile raises many kinds: ValueError, OverflowError, zlib's own.
            target_name = package.target or "the workdir"
            raise PackageError(f"package for {target_name} cannot be unpacked: {error}") from error


def unpack(path: Path, staging: Path, target: Path) -> None:
    """Unpack an archive into the new folder `staging`, then move its content to `target`.

    Existing files cannot redirect the unpacking, and a broken archive leaves nothing. Raises
    PackageError, and whatever tarfile raises.
    """
    with tarfile.open(path, "r:gz") as archive:
        target.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(staging, ignore_errors=True)  # left by an agent that was killed
        staging.mkdir(mode=0o700)
        try:
            archive.extractall(staging, members=_safe_members(archive, staging))  # noqa: S202 - checked
            for source, destination in list(_moves(staging, target)):
                source.replace(destination)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _moves(new: Path, target: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the moves that put the content of folder `new` over that of folder `target`.

    Raises PackageError where only one of the two has a folder; a link is not a folder.
    """
    for source in sorted(new.iterdir()):
        existing = target / source.name
        if not os.path.lexists(existing):
            yield source, existing
            continue
        are_folders = _is_folder(source), _is_folder(existing)
        if all(are_folders):
            yield from _moves(source, existing)
        elif any(are_folders):
            raise PackageError(
                f"{existing} conflicts with the package: move it, or leave it out of the package"
            )
        else:
            yield source, existing


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _safe_members(archive: tarfile.TarFile, staging: Path) -> Iterator[tarfile.TarInfo]:
    """Yield the members that stay inside `staging`, which holds only the members before them.

    Written by hand, because tarfile's "data" filter is missing from Python 3.10 and 3.11 of many
    images, and other versions of it have let links out.
    """
    end = -1
    for member in archive:
        if member.offset <= end:
            raise PackageError(
                f"{member.name!r} in the package points back in the archive, which never ends"
            )
        end = member.offset
        name = PurePosixPath(member.name)
        _check_path(member, name, staging)
        if member.issym():
            # Normalized, so that no ".." follows a name that may be a link.
            member.linkname = posixpath.normpath(member.linkname)
            _check_inside(member, PurePosixPath(posixpath.normpath(name.parent / member.linkname)))
        elif member.islnk():
            linked = PurePosixPath(member.linkname)
            _check_path(member, linked, staging)
            if not (staging / linked).is_file():
                raise PackageError(
                    f"{member.name!r} in the package links to what is not a file of the package"
                )
        elif not (member.isreg() or member.isdir()):
            raise PackageError(f"{member.name!r} in the package is a device or a pipe")
        member.uid, member.gid = os.getuid(), os.getgid()
        member.uname = member.gname = ""
        member.mode = (member.mode & 0o755) | (0o700 if member.isdir() else 0o600)
        yield member


def _check_path(member: tarfile.TarInfo, path: PurePosixPath, staging: Path) -> None:
    """Raise PackageError unless `path` is inside `staging` and passes through real folders only."""
    _check_inside(member, path)
    if len(path.parts) > _MAX_DEPTH:
        raise PackageError(f"{member.name[:80]!r} in the package is too deep in folders")
    if any((staging / part).is_symlink() for part in (path, *path.parents)):
        raise PackageError(f"{member.name!r} in the package goes through a link")


def _check_inside(member: tarfile.TarInfo, path: PurePosixPath) -> None:
    if path.is_absolute() or ".." in path.parts:
        raise PackageError(f"{member.name!r} in the package leads out of its folder")
