"""An environment for the saver, made on the machine of wheels that the box has sent: the machine's
own Python of 3.11 or newer, else one that came from the box as well, and nothing of the job's. It
lies below the agent's home, named by what it is made of, and is there whole or not at all."""

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

from trainer.agent.base.pythons import MADE, NEEDS, OLDEST, find_python
from trainer.agent.data.packages import archive_of, unpack

_NEWEST = 15  # 3.15: what is looked for by name
_ASK_S = 30.0
_FACTS = (
    "import json, platform, sys;"
    "print(json.dumps([*sys.version_info[:2], platform.machine(), sys.executable]))"
)


@dataclass(frozen=True)
class Interpreter:
    """A Python of this machine."""

    path: str
    minor: int  # of 3
    machine: str


class _UnfitError(Exception):
    """Nothing can be made of it; the text says why."""


def make_tools(home: Path, digest: str) -> str:
    """Have what a saver needs. Why it cannot be had, or nothing: then the job does with what the
    machine has."""
    if not digest or find_python(home, "s3:"):
        return ""
    try:
        made = _make(home, digest)
    except (_UnfitError, OSError, tarfile.TarError, zipfile.BadZipFile) as error:
        return f"the saver's environment cannot be made: {error}"
    link = home / MADE
    new = link.with_name(f"{link.name}.{os.getpid()}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(made.name)
    new.replace(link)
    return ""


def _make(home: Path, digest: str) -> Path:
    folder = home / MADE.parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as scratch:
        wheels = Path(scratch) / "wheels"
        wheels.mkdir()
        with tarfile.open(archive_of(home, digest)) as archive:
            for member in archive:
                data = archive.extractfile(member)
                if data is not None and "/" not in member.name:
                    (wheels / member.name).write_bytes(data.read())
        names = [path.name for path in wheels.iterdir()]
        for python in (*interpreters(), *_sent(home, wheels, Path(scratch))):
            chosen = choose(names, python)
            if chosen is not None:
                break
        else:
            raise _UnfitError(_missing(names))
        made = folder / f"{digest[:16]}-3.{python.minor}"
        if not made.exists():
            new = Path(scratch) / "made"
            _fill(new, python, [wheels / name for name in chosen])
            _check(new)
            new.rename(made)
    return made


def fit(home: Path, digest: str) -> bool:
    """Whether wheels that were sent are for a Python that is here."""
    with suppress(FileNotFoundError), tarfile.open(archive_of(home, digest)) as archive:
        names = archive.getnames()
        return any(choose(names, python) for python in interpreters())
    return False


def _sent(home: Path, wheels: Path, scratch: Path) -> Iterator[Interpreter]:
    """Pythons that came with those wheels, for this machine."""
    for told in sorted(wheels.glob(f"cpython-*-{os.uname().machine}-*.sha256")):
        digest = told.read_text(encoding="ascii").strip()
        folder, archive = home / MADE.parent / f"python-{digest[:16]}", archive_of(home, digest)
        if not folder.exists() and archive.exists():
            new = scratch / "python"
            try:
                unpack(archive, new.with_name("draft"), new)
            except Exception as error:  # tarfile raises whatever it meets
                raise _UnfitError(f"the Python that was sent: {error}") from error
            new.rename(folder)
        for path in sorted(folder.glob("*/bin/python3.*")):
            found = _ask(str(path)) if path.suffix[1:].isdecimal() else None
            if found is not None:
                yield found


def _missing(names: Iterable[str]) -> str:
    found = interpreters()
    if not found:
        return (
            "there is no Python of 3.11 or newer here: lay one into the folder `wheels` of the "
            "box's state_dir, see docs/stores.md, or install one here (apt-get install python3.11)"
        )
    which = ", ".join(f"3.{one.minor} on {one.machine}" for one in found)
    return (
        f"no wheels of {' and '.join(NEEDS)} fit {which} (there are {', '.join(sorted(names))}): "
        "put some into the folder `wheels` of the box's state_dir, see docs/stores.md"
    )


def interpreters() -> list[Interpreter]:
    """Those that are new enough; the one that runs us first, then the newest."""
    named = [shutil.which(f"python3.{minor}") for minor in range(_NEWEST, OLDEST[1] - 1, -1)]
    found: dict[str, Interpreter] = {}
    for path in (sys.executable, *named):
        if path:
            one = _ask(path)
            if one is not None and one.minor >= OLDEST[1]:
                found.setdefault(one.path, one)
    return list(found.values())


def _ask(path: str) -> Interpreter | None:
    try:
        done = subprocess.run(
            [path, "-I", "-c", _FACTS], capture_output=True, timeout=_ASK_S, check=True
        )
        major, minor, machine, executable = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return Interpreter(executable, minor, machine) if major == OLDEST[0] else None


def choose(names: Iterable[str], python: Interpreter) -> list[str] | None:
    """Of wheels by their file names, one of each distribution that fits; None where one that is
    needed does not."""
    found = {name.partition("-")[0].lower(): name for name in sorted(names) if _fits(name, python)}
    return list(found.values()) if found.keys() >= set(NEEDS) else None


def _fits(name: str, python: Interpreter) -> bool:
    *_, pythons, abis, platforms = name.removesuffix(".whl").split("-")
    ours, abi = f"cp3{python.minor}", abis.split(".")
    exact = ours in pythons.split(".") and ours in abi
    stable = "abi3" in abi and any(
        one[:3] == "cp3" and one[3:].isdecimal() and int(one[3:]) <= python.minor
        for one in pythons.split(".")
    )
    pure = "none" in abi and "py3" in pythons.split(".")
    here = platforms == "any" or any(
        one.startswith(("manylinux", "linux")) and one.endswith(f"_{python.machine}")
        for one in platforms.split(".")
    )
    return here and (exact or stable or pure)


def _fill(folder: Path, python: Interpreter, wheels: Iterable[Path]) -> None:
    """As `venv` does it, of which Debian has half in a package of its own."""
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
    words = [str(folder / "bin" / "python"), "-I", "-c", f"import {', '.join(NEEDS)}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=_ASK_S, check=False)
    if done.returncode:
        raise _UnfitError(done.stderr.strip().rpartition("\n")[2][:300])
