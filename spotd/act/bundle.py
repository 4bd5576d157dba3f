"""The agent's bundle: one zipapp with everything that runs on a node, named by its digest."""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from providers.clouds import CLOUDS

# Folders are taken with all *.py below them; files by themselves. The standard library aside,
# this is all that the agent imports: a test runs it alone on the system's Python. The hook is for
# the training programs, and needs their torch; the saver runs where its own needs are.
SOURCES = (
    "providers/base.py",
    "providers/cloud_facts.py",
    "providers/clouds.py",
    "providers/dollars.py",
    "providers/errors.py",
    "providers/http_request.py",
    "providers/federation.py",
    "providers/credential_leases.py",
    "providers/link_local.py",
    "providers/stores/__init__.py",
    "providers/stores/base.py",
    "providers/stores/dataset_copy.py",
    "providers/stores/bucket.py",
    "providers/stores/local.py",
    "providers/stores/multi_store.py",
    *(
        f"{module.replace('.', '/')}.py"
        for cloud in CLOUDS.values()
        for module in cloud.node_modules
    ),
    "spotd/wire",
    "trainer/agent",
    "trainer/caches",
    "trainer/directory",
    "trainer/fence.py",
    "trainer/hook/spotd_hook",
    "trainer/mounts",
    "trainer/node.py",
    "trainer/outputs",
    "trainer/saver",
)
_MAIN = "from trainer.node import main\n\nraise SystemExit(main())\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the oldest time that a zip can say: bytes depend on content alone


@dataclass(frozen=True)
class Bundle:
    """The zipapp's bytes and their sha256."""

    data: bytes
    digest: str


def sources() -> dict[str, Path]:
    """Return every file of the bundle by its name there, with its installed path."""
    files: dict[str, Path] = {}
    for source in SOURCES:
        path = _locate(source)
        if path.is_dir():
            files |= {
                f"{source}/{member.relative_to(path).as_posix()}": member
                for member in sorted(path.rglob("*.py"))
            }
        else:
            files[source] = path
    return files


def build_bundle() -> Bundle:
    """Build the bundle from the installed packages, without importing them, reproducibly."""
    files = {"__main__.py": _MAIN.encode()}
    files |= {name: path.read_bytes() for name, path in sources().items()}
    for name in list(files):
        for parent in Path(name).parents:
            if parent != Path():
                files.setdefault(f"{parent.as_posix()}/__init__.py", b"")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), files[name], zipfile.ZIP_DEFLATED)
    data = buffer.getvalue()
    return Bundle(data, hashlib.sha256(data).hexdigest())


def _locate(source: str) -> Path:
    package, _, rest = source.partition("/")
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"package {package} is not installed")
    return Path(next(iter(spec.submodule_search_locations))) / rest
