"""What a saver needs on a machine, as wheels: what this box has installed itself, and what lies in
a folder of wheels for machines of another Python or processor.

They travel as a package does, over SSH from here: a machine may reach no registry, and nothing of
ours is to depend on one. One archive serves every machine; its agent takes what fits.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from providers.stores.base import ConflictError, ObjectStore

NEEDS = ("obstore", "xxhash", "typing_extensions")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the oldest time that a zip can say


class Kit:
    """Made when it is first asked for, and kept in the deployment's store. `folder` is where more
    wheels may lie."""

    def __init__(self, objects: ObjectStore, folder: Path) -> None:
        self._objects, self._folder = objects, folder
        self._lock = threading.Lock()
        self._digest: str | None = None

    def digest(self) -> str:
        """Of the archive, `packages/<digest>` in the store; "" where this box has nothing of it.
        Raises the store's errors."""
        with self._lock:
            if self._digest is None:
                self._digest = self._keep(wheels(self._folder))
            return self._digest

    def _keep(self, found: Mapping[str, bytes]) -> str:
        if not found:
            return ""
        data = pack(found)
        digest = hashlib.sha256(data).hexdigest()
        with suppress(ConflictError):  # it is there, and named by what it is
            self._objects.put_if(f"packages/{digest}", data, None)
        return digest


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
