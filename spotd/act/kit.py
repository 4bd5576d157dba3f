"""What a saver needs on a machine, as wheels: what this box has installed itself, and what lies in
a folder of wheels for machines of another Python or processor; and a Python that stands alone, for
those whose own is too old.

They travel as a package does, over SSH from here: a machine may reach no registry, and nothing of
ours is to depend on one. One archive of wheels serves every machine; its agent takes what fits. It
names the Pythons that lie beside it, each an archive of its own, which only who needs it is sent.
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
from spotd.model import Node
from spotd.vault import JobKeys

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
class Python:
    """One that stands alone: `packages/<digest>` in the store, for machines of that processor as
    uname names it."""

    digest: str
    machine: str


@dataclass(frozen=True)
class Tools:
    """The archive of wheels is `packages/<digest>` in the store; "" where this box has none."""

    digest: str = ""
    pythons: tuple[Python, ...] = ()


class Kit:
    """Made when it is first asked for, and kept in the deployment's store. `folder` is where more
    wheels may lie, and Pythons."""

    def __init__(self, objects: ObjectStore, folder: Path) -> None:
        self._objects, self._folder = objects, folder
        self._lock = threading.Lock()
        self._tools: Tools | None = None

    def tools(self) -> Tools:
        """Raises the store's errors."""
        with self._lock:
            if self._tools is None:
                self._tools = self._made()
            return self._tools

    def _made(self) -> Tools:
        found = wheels(self._folder)
        if not found:
            return Tools()
        pythons = []
        for name, machine in pythons_in(self._folder):
            digest = self._keep((self._folder / name).read_bytes())
            pythons.append(Python(digest, machine))
            found[f"{name}.sha256"] = digest.encode()
        return Tools(self._keep(pack(found)), tuple(pythons))

    def _keep(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        with suppress(ConflictError):  # it is there, and named by what it is
            self._objects.put_if(f"packages/{digest}", data, None)
        return digest


def send_tools(
    link: NodeLink,
    node: Node,
    keys: JobKeys,
    tools: Tools,
    source: ObjectStore,
    left_s: Callable[[], float],
) -> None:
    """Have on the machine what its saver needs, where that is not there. A Python is large, and a
    slow line keeps no job from its start: the machine says then that it has none. Raises LinkError,
    StoreError."""
    if not tools.digest:
        return
    link.put_package(node, keys, tools.digest, source, left_s(), unless="--unless-able")
    for python in tools.pythons:
        unless = f"--unless-tools {tools.digest} --machine {python.machine}"
        try:
            link.put_package(
                *(node, keys, python.digest, source, left_s() * FOR_PYTHON), unless=unless
            )
        except LinkError as error:
            _LOG.warning("a machine has no Python for its saver", node=node.id, error=str(error))


def pythons_in(folder: Path) -> list[tuple[str, str]]:
    """Of those that stand alone, file name and processor."""
    names = sorted(path.name for path in folder.glob("cpython-*")) if folder.is_dir() else []
    return [(name, told[1]) for name in names if (told := _PYTHON.fullmatch(name))]


def wheels(folder: Path) -> dict[str, bytes]:
    """By file name; of one that is in the folder, that one."""
    found = {}
    for name in NEEDS:
        try:
            file, data = _repacked(distribution(name))
        except PackageNotFoundError:
            continue
        found[file] = data
    for path in sorted(folder.glob("*.whl")) if folder.is_dir() else ():
        if path.name.partition("-")[0].lower() in NEEDS:
            found[path.name] = path.read_bytes()
    return found


def pack(found: Mapping[str, bytes]) -> bytes:
    """The same bytes for the same wheels."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=1, mtime=0) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w") as archive,
    ):
        for name in sorted(found):
            member = tarfile.TarInfo(name)
            member.size = len(found[name])
            archive.addfile(member, io.BytesIO(found[name]))
    return buffer.getvalue()


def _repacked(installed: Distribution) -> tuple[str, bytes]:
    """The wheel that it was installed from, as far as it matters to whoever imports it."""
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
