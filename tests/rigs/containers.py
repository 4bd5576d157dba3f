"""Containers on this computer: podman with storage of its own, and an image made of what is here.

podman is asked through its own files of settings, so that the agent under test needs no word about
it. Where root may not raise limits (no CAP_SYS_RESOURCE, as in many a CI machine), no container
starts with the ones that podman sets: its runtime is then called without them.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

IMAGE = "localhost/spotd-test:1"
_RUNTIME = """#!/usr/bin/python3
import json, os, sys
for index, word in enumerate(sys.argv):
    if word in ("--bundle", "-b"):
        path = sys.argv[index + 1] + "/config.json"
    elif word in ("--process", "-p"):
        path = sys.argv[index + 1]
    else:
        continue
    with open(path) as file:
        config = json.load(file)
    (config if "process" not in config else config["process"]).pop("rlimits", None)
    with open(path, "w") as file:
        json.dump(config, file)
os.execv({runc!r}, ["runc", *sys.argv[1:]])
"""
_PROGRAMS = ("bash", "sleep", "cat", "mkdir", "touch", "setsid", "python3")


@dataclass(frozen=True)
class Podman:
    """`env` is what a machine's environment has for it."""

    env: dict[str, str]

    def __call__(self, *args: str) -> str:
        done = subprocess.run(
            ["podman", *args],
            env={**os.environ, **self.env},
            capture_output=True,
            text=True,
            timeout=60.0,
            check=True,
        )
        return done.stdout.strip()

    def containers(self) -> list[str]:
        return self("ps", "--all", "--format", "{{.Names}}").split()


@contextmanager
def running_podman() -> Iterator[Podman]:
    """A podman whose images and containers are its own, and gone at the end."""
    # Not in pytest's own folder: it removes that, and what is mounted there cannot be removed.
    folder = Path(tempfile.mkdtemp(prefix="spotd-podman-"))
    try:
        podman = set_up(folder)
        yield podman
        podman("rm", "--all", "--force", "--time", "0")
    finally:
        mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for mount in sorted(mounts, reverse=True):
            if mount.startswith(f"{folder}/"):
                subprocess.run(["umount", "--lazy", mount], check=False)
        shutil.rmtree(folder)


def set_up(folder: Path) -> Podman:
    """A podman whose images and containers lie in `folder`."""
    runc = shutil.which("runc") or "/usr/sbin/runc"
    assert shutil.which("podman"), "podman is missing: tests/system-packages installs it"
    runtime = folder / "runtime"
    runtime.write_text(_RUNTIME.format(runc=runc), encoding="utf-8")
    runtime.chmod(0o700)
    settings, storage = folder / "containers.conf", folder / "storage.conf"
    settings.write_text(
        '[engine]\nruntime = "here"\ncgroup_manager = "cgroupfs"\n'
        f'[engine.runtimes]\nhere = ["{runtime}"]\n',
        encoding="utf-8",
    )
    storage.write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/images"\nrunroot = "{folder}/run"\n',
        encoding="utf-8",
    )
    registries = folder / "registries.conf"
    registries.write_text(
        '[[registry]]\nprefix = "127.0.0.1"\nlocation = "127.0.0.1"\ninsecure = true\n',
        encoding="utf-8",
    )
    podman = Podman(
        {
            "CONTAINERS_CONF": str(settings),
            "CONTAINERS_STORAGE_CONF": str(storage),
            "CONTAINERS_REGISTRIES_CONF": str(registries),
        }
    )
    archive = folder / "image.tar"
    make_image(archive)
    podman("import", "--quiet", str(archive), IMAGE)
    archive.unlink()
    return podman


def make_image(path: Path) -> None:
    """A file system of some of this computer's programs, the libraries that they need, and what
    Python comes with."""
    found = [Path(shutil.which(name, path="/usr/bin:/bin") or name) for name in _PROGRAMS]
    standard = next(Path("/usr/lib").glob("python3.[0-9]*"))
    libraries = _libraries([*found, *standard.rglob("*.so")])
    with tarfile.open(path, "w") as archive:
        for program in found:
            archive.add(program.resolve(), f"usr/bin/{program.name}")
        for library in sorted(libraries):
            archive.add(library.resolve(), str(library).lstrip("/"))
        archive.add(standard, str(standard).lstrip("/"), filter=_needed)
        for link, target in (("usr/bin/sh", "bash"), ("bin", "usr/bin")):
            info = tarfile.TarInfo(link)
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
        words = b"root:x:0:0:root:/root:/bin/sh\n"
        info = tarfile.TarInfo("etc/passwd")
        info.size = len(words)
        archive.addfile(info, io.BytesIO(words))


def _libraries(programs: Sequence[Path]) -> set[Path]:
    argv = ["ldd", *map(str, programs)]
    text = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    words = {word for line in text.splitlines() for word in line.split()[:3]}
    return {Path(word) for word in words if word.startswith("/") and Path(word).exists()}


def _needed(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    unneeded = {"test", "tests", "ensurepip", "idlelib", "dist-packages", "lib2to3", "pydoc_data"}
    return None if unneeded & set(Path(member.name).parts) else member
