"""The job's code and files: content-addressed archives, cached on the node and unpacked once."""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from spotd.wire import Package
from trainer.agent.places import NodeError

_DIGEST = re.compile(r"[0-9a-f]{64}")
_CHUNK_BYTES = 1 << 20


class PackageError(NodeError):
    """An archive cannot be stored or unpacked."""


def _archive(home: Path, digest: str) -> Path:
    if not _DIGEST.fullmatch(digest):
        raise PackageError(f"{digest!r} is not a sha256 in lower-case hex")
    return home / "packages" / f"{digest}.tar.gz"


def has_package(home: Path, digest: str) -> bool:
    """Whether the archive is in the cache; it was verified when it was put there."""
    return _archive(home, digest).exists()


def put_package(home: Path, digest: str, source: BinaryIO) -> None:
    """Take the archive from `source` to its end. Raises PackageError when its digest differs."""
    path = _archive(home, digest)
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
    """Unpack each at its target; doing it again is harmless. Raises PackageError."""
    for package in packages:
        target = workdir / Path(package.target).expanduser() if package.target else workdir
        path = _archive(home, package.digest)
        try:
            target.mkdir(parents=True, exist_ok=True)
            with tarfile.open(path, "r:gz") as archive:
                archive.extractall(target, members=_checked(archive))  # noqa: S202 - see _checked
        except FileNotFoundError as error:
            raise PackageError(f"package {package.digest} is not here: put it first") from error
        except PackageError:
            raise
        except Exception as error:
            # tarfile raises whatever it meets: ValueError, OverflowError, zlib's own.
            where = package.target or "the workdir"
            raise PackageError(f"package for {where} cannot be unpacked: {error}") from error


def _checked(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Members that stay inside the target: what tarfile's "data" filter allows.

    Written out, because that filter is missing from Python 3.10 and 3.11 as many images have them.
    """
    links: set[PurePosixPath] = set()
    for member in archive:
        name = PurePosixPath(member.name)
        if name.is_absolute() or ".." in name.parts:
            raise PackageError(f"{member.name!r} in the package leads out of its folder")
        if links & {name, *name.parents}:
            raise PackageError(f"{member.name!r} in the package goes through a link")
        if member.issym():
            _check_link(member, name.parent / member.linkname)
            links.add(name)
        elif member.islnk():
            _check_link(member, PurePosixPath(member.linkname))
        elif not (member.isreg() or member.isdir()):
            raise PackageError(f"{member.name!r} in the package is a device or a pipe")
        member.uid, member.gid = os.getuid(), os.getgid()
        member.uname = member.gname = ""
        member.mode = (member.mode & 0o755) | (0o700 if member.isdir() else 0o600)
        yield member


def _check_link(member: tarfile.TarInfo, target: PurePosixPath) -> None:
    depth = 0
    for part in target.parts:
        depth += -1 if part == ".." else 0 if part == "." else 1
        if depth < 0 or part == "/":
            raise PackageError(f"link {member.name!r} in the package leads out of its folder")
