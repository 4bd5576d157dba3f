"""Collect a saver's tools for a machine: wheels, and a standalone Python if its own is too old.

The wheels are those that this box has installed, and those in a folder for machines with another
Python or processor. They travel over SSH like packages, because a machine may reach no package
index. One archive of wheels serves every machine, and its agent installs what fits. The archive
names the Pythons beside it, each an archive that is only sent to machines that need it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import tarfile
import threading
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import structlog

from providers.stores.base import ConflictError, ObjectStore
from spotd.act.node_link import LinkError, NodeLink
from spotd.domain.node import Node
from spotd.security.secrets import JobKeys

NEEDS = ("obstore", "xxhash", "typing_extensions")
# As python-build-standalone names what it releases, and curl what it takes by the address that its
# page has; of glibc's alone, as are our wheels.
_PYTHON = re.compile(
    r"cpython-3\.\d+\.\d+(?:\+|%2B)\d+-(x86_64|aarch64)-unknown-linux-gnu-install_only"
    r"(?:_stripped)?\.tar\.gz"
)
FOR_PYTHON = 0.5  # of what is left of the start's time
_LOG = structlog.get_logger(__name__)
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the oldest time that a zip can say


@dataclass(frozen=True)
class StandalonePython:
    """A standalone Python: `packages/<digest>` in the store, for processors as uname names them."""

    digest: str
    machine: str


@dataclass(frozen=True)
class SaverPackages:
    """The archive of wheels is `packages/<digest>` in the store; "" where this box has none."""

    digest: str = ""
    pythons: tuple[StandalonePython, ...] = ()


class SaverEnv:
    """Builds the archives at the first request and keeps them in the deployment's store.

    `folder` may hold more wheels, and Pythons.
    """

    def __init__(self, objects: ObjectStore, folder: Path) -> None:
        self._objects, self._folder = objects, folder
        self._lock = threading.Lock()
        self._tools: SaverPackages | None = None

    def tools(self) -> SaverPackages:
        """Return the archives. Raises store errors."""
        with self._lock:
            if self._tools is None:
                self._tools = self._made()
            return self._tools

    def _made(self) -> SaverPackages:
        files = wheels(self._folder)
        if not files:
            return SaverPackages()
        pythons = []
        for name, machine in pythons_in(self._folder):
            digest = self._keep((self._folder / name).read_bytes())
            pythons.append(StandalonePython(digest, machine))
            files[f"{name}.sha256"] = digest.encode()
        return SaverPackages(self._keep(pack(files)), tuple(pythons))

    def _keep(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        with suppress(ConflictError):  # it is there, and named by what it is
            self._objects.put_if(f"packages/{digest}", data, None)
        return digest


def send_tools(
    link: NodeLink,
    node: Node,
    keys: JobKeys,
    tools: SaverPackages,
    source: ObjectStore,
    left_s: Callable[[], float],
) -> None:
    """Send the machine the tools that its saver lacks. Raises LinkError, StoreError.

    A Python is large, and a slow connection must not block the job's start: the machine then
    reports that it has none.
    """
    if not tools.digest:
        return
    link.put_package(node, keys, tools.digest, source, left_s(), unless="--unless-able")
    for python in tools.pythons:
        unless = f"--unless-tools {tools.digest} --machine {python.machine}"
        try:
            link.put_package(
                node,
                keys,
                python.digest,
                source,
                left_s() * FOR_PYTHON,
                unless=unless,
            )
        except LinkError as error:
            _LOG.warning("a machine has no Python for its saver", node=node.id, error=str(error))


def pythons_in(folder: Path) -> list[tuple[str, str]]:
    """Return the file name and processor of each standalone Python."""
    names = sorted(path.name for path in folder.glob("cpython-*")) if folder.is_dir() else []
    return [(name, match[1]) for name in names if (match := _PYTHON.fullmatch(name))]


def wheels(folder: Path) -> dict[str, bytes]:
    """Return the wheels by file name; one in the folder replaces an installed one."""
    files = {}
    for name in NEEDS:
        try:
            file, data = _repacked(distribution(name))
        except PackageNotFoundError:
            continue
        files[file] = data
    for path in sorted(folder.glob("*.whl")) if folder.is_dir() else ():
        if path.name.partition("-")[0].lower() in NEEDS:
            files[path.name] = path.read_bytes()
    return files


def pack(files: Mapping[str, bytes]) -> bytes:
    """The same bytes for the same wheels."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=1, mtime=0) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w") as archive,
    ):
        for name in sorted(files):
            member = tarfile.TarInfo(name)
            member.size = len(files[name])
            archive.addfile(member, io.BytesIO(files[name]))
    return buffer.getvalue()


def _repacked(installed: Distribution) -> tuple[str, bytes]:
    """Return the wheel that a distribution was installed from, as far as imports need it."""
    lines = (installed.read_text("WHEEL") or "").splitlines()
    tags = [line.partition(":")[2].strip().split("-") for line in lines if line.startswith("Tag:")]
    pythons, abis, platforms = (".".join(dict.fromkeys(part)) for part in zip(*tags, strict=True))
    name = installed.metadata["Name"].replace("-", "_")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(installed.files or (), key=str):
            outside = ".." in file.parts or "__pycache__" in file.parts
            if not outside and (path := Path(str(file.locate()))).is_file():
                info = zipfile.ZipInfo(file.as_posix(), _EPOCH)
                archive.writestr(info, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return f"{name}-{installed.version}-{pythons}-{abis}-{platforms}.whl", buffer.getvalue()
