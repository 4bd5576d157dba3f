"""Build the saver's Python environment on the machine, from wheels that the box has sent.

It uses the machine's own Python 3.11 or newer, or one that the box has sent as well, and nothing of
the job's. It is below the agent's home, named by its content, and appears atomically.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainer.agent.base.pythons import BUILT, MIN_PYTHON, REQUIRED_MODULES, find_python
from trainer.agent.data.packages import archive_path, unpack

_MAX_MINOR = 15  # search for python3.11 to python3.15
_PROBE_S = 30.0
_FACTS = (
    "import json, platform, sys;"
    "print(json.dumps([*sys.version_info[:2], platform.machine(), sys.executable]))"
)


@dataclass(frozen=True)
class Interpreter:
    """A Python on this machine."""

    path: str
    minor: int  # of 3
    machine: str


class _UnfitError(Exception):
    """No environment can be built; the message has the reason."""


def ensure_saver_env(home: Path, digest: str) -> str:
    """Build the environment if needed; returns the error, or "".

    After an error the job continues with the machine's own packages.
    """
    if not digest or find_python(home, "s3:"):
        return ""
    try:
        built = _build_once(home, digest)
    except (_UnfitError, OSError, tarfile.TarError, zipfile.BadZipFile) as error:
        return f"the saver's environment cannot be made: {error}"
    link = home / BUILT
    new = link.with_name(f"{link.name}.{os.getpid()}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(built.name)
    new.replace(link)
    return ""


def _build_once(home: Path, digest: str) -> Path:
    folder = home / BUILT.parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as scratch:
        wheels = Path(scratch) / "wheels"
        wheels.mkdir()
        with tarfile.open(archive_path(home, digest)) as archive:
            for member in archive:
                data = archive.extractfile(member)
                if data is not None and "/" not in member.name:
                    (wheels / member.name).write_bytes(data.read())
        names = [path.name for path in wheels.iterdir()]
        for python in (*find_interpreters(), *_sent_pythons(home, wheels, Path(scratch))):
            chosen = choose_wheels(names, python)
            if chosen is not None:
                break
        else:
            raise _UnfitError(_no_wheels_message(names))
        built = folder / f"{digest[:16]}-3.{python.minor}"
        if not built.exists():
            new = Path(scratch) / "made"
            _create_environment(new, python, [wheels / name for name in chosen])
            _check(new)
            new.rename(built)
    return built


def wheels_fit(home: Path, digest: str) -> bool:
    """Whether the wheels with this digest fit a Python of this machine."""
    with suppress(FileNotFoundError), tarfile.open(archive_path(home, digest)) as archive:
        names = archive.getnames()
        return any(choose_wheels(names, python) for python in find_interpreters())
    return False


def _sent_pythons(home: Path, wheels: Path, scratch: Path) -> Iterator[Interpreter]:
    """Yield the Pythons that were sent with the wheels, for this machine's architecture."""
    for digest_file in sorted(wheels.glob(f"cpython-*-{os.uname().machine}-*.sha256")):
        digest = digest_file.read_text(encoding="ascii").strip()
        folder, archive = home / BUILT.parent / f"python-{digest[:16]}", archive_path(home, digest)
        if not folder.exists() and archive.exists():
            new = scratch / "python"
            try:
                unpack(archive, new.with_name("draft"), new)
            except Exception as error:  # tarfile raises many kinds
                raise _UnfitError(f"the Python that was sent: {error}") from error
            new.rename(folder)
        for path in sorted(folder.glob("*/bin/python3.*")):
            interpreter = _probe(str(path)) if path.suffix[1:].isdecimal() else None
            if interpreter is not None:
                yield interpreter


def _no_wheels_message(names: Iterable[str]) -> str:
    interpreters = find_interpreters()
    if not interpreters:
        return (
            "there is no Python 3.11 or newer here: put one into the folder `wheels` of the "
            "box's state_dir, see docs/stores.md, or install one here (apt-get install python3.11)"
        )
    available = ", ".join(
        f"3.{interpreter.minor} on {interpreter.machine}" for interpreter in interpreters
    )
    return (
        f"no wheels of {' and '.join(REQUIRED_MODULES)} fit {available} "
        f"(there are {', '.join(sorted(names))}): "
        "put some into the folder `wheels` of the box's state_dir, see docs/stores.md"
    )


def find_interpreters() -> list[Interpreter]:
    """Return the Pythons that are new enough: the one that runs us first, then the newest."""
    named = [shutil.which(f"python3.{minor}") for minor in range(_MAX_MINOR, MIN_PYTHON[1] - 1, -1)]
    by_path: dict[str, Interpreter] = {}
    for path in (sys.executable, *named):
        if path:
            interpreter = _probe(path)
            if interpreter is not None and interpreter.minor >= MIN_PYTHON[1]:
                by_path.setdefault(interpreter.path, interpreter)
    return list(by_path.values())


def _probe(path: str) -> Interpreter | None:
    try:
        result = subprocess.run(
            [path, "-I", "-c", _FACTS], capture_output=True, timeout=_PROBE_S, check=True
        )
        major, minor, machine, executable = json.loads(result.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return Interpreter(executable, minor, machine) if major == MIN_PYTHON[0] else None


def choose_wheels(names: Iterable[str], python: Interpreter) -> list[str] | None:
    """Choose from wheel file names one per distribution that fits; None if a required one is
    missing."""
    chosen = {
        name.partition("-")[0].lower(): name for name in sorted(names) if _wheel_fits(name, python)
    }
    return list(chosen.values()) if chosen.keys() >= set(REQUIRED_MODULES) else None


def _wheel_fits(name: str, python: Interpreter) -> bool:
    *_, pythons, abis, platforms = name.removesuffix(".whl").split("-")
    tag, abi = f"cp3{python.minor}", abis.split(".")
    exact = tag in pythons.split(".") and tag in abi
    stable = "abi3" in abi and any(
        part[:3] == "cp3" and part[3:].isdecimal() and int(part[3:]) <= python.minor
        for part in pythons.split(".")
    )
    pure = "none" in abi and "py3" in pythons.split(".")
    machine_fits = platforms == "any" or any(
        part.startswith(("manylinux", "linux")) and part.endswith(f"_{python.machine}")
        for part in platforms.split(".")
    )
    return machine_fits and (exact or stable or pure)


def _create_environment(folder: Path, python: Interpreter, wheels: Iterable[Path]) -> None:
    """Create the environment like `venv`, half of which is a separate package on Debian."""
    site = folder / f"lib/python3.{python.minor}/site-packages"
    site.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(python.path)
    home = Path(python.path).parent
    text = f"home = {home}\ninclude-system-site-packages = false\n"
    (folder / "pyvenv.cfg").write_text(text, encoding="utf-8")
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                path = site / name
                if ".." in path.parts or name.startswith("/") or name.endswith("/"):
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(name))


def _check(folder: Path) -> None:
    command = [str(folder / "bin" / "python"), "-I", "-c", f"import {', '.join(REQUIRED_MODULES)}"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_S, check=False)
    if result.returncode:
        raise _UnfitError(result.stderr.strip().rpartition("\n")[2][:300])
