"""spotd as a user has it: a wheel in an environment of its own, the checkout out of reach."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGES = ("spotd", "providers", "trainer", "migrations")
FILES = ("pyproject.toml", "README.md", "LICENSE")

_ASK = """
import importlib.util, json, sys
found = {name: importlib.util.find_spec(name) for name in %r}
print(json.dumps({"where": {n: s and s.origin for n, s in found.items()}, "path": sys.path}))
"""


class InstallError(Exception):
    """The wheel cannot be built or installed, or the checkout can still be imported."""


def install(folder: Path) -> Path:
    """Build the wheel, install it under `folder`; the interpreter that has it.

    Third-party packages are those of the environment we run in; nothing comes from a network.
    Raises InstallError.
    """
    wheel = _build(folder)
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    python = folder / "venv" / "bin" / "python"
    options = ["--no-deps", "--no-index", "--disable-pip-version-check"]
    _run([sys.executable, "-m", "pip", "--python", str(python), "install", *options, str(wheel)])
    site = next((folder / "venv" / "lib").glob("python3.*/site-packages"))
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    # Its *.pth files are not read, so that an editable install there leads nowhere.
    (site / "third-party.pth").write_text("\n".join(sorted(paths)) + "\n")
    _check(python, folder)
    return python


def _build(folder: Path) -> Path:
    """From a copy, so that building leaves nothing in the checkout."""
    source = folder / "source"
    for name in PACKAGES:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(CHECKOUT / name, source / name, ignore=ignore)
    for name in FILES:
        shutil.copy(CHECKOUT / name, source)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    wheels = str(folder / "wheels")
    _run([sys.executable, "-m", "pip", "wheel", *options, "-w", wheels, str(source)])
    shutil.rmtree(source)
    return next((folder / "wheels").glob("spotd-*.whl"))


def _check(python: Path, folder: Path) -> None:
    names = (*PACKAGES, "tests", "torch")
    answer = json.loads(_run([str(python), "-c", _ASK % (names,)], cwd=folder))
    strangers = {
        name: origin
        for name, origin in answer["where"].items()
        if name in PACKAGES and not Path(origin).is_relative_to(folder)
    }
    if strangers or answer["where"]["tests"] or str(CHECKOUT) in answer["path"]:
        raise InstallError(f"the checkout can be imported: {answer}")
    if not answer["where"]["torch"]:
        raise InstallError("torch is not in this environment")


def _run(command: list[str], cwd: Path | None = None) -> str:
    """Its standard output. Raises InstallError with what it said."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=cwd, env=environ
    )
    if done.returncode:
        said = (done.stdout + done.stderr)[-2000:]
        raise InstallError(f"{' '.join(command[:6])}: exit {done.returncode}:\n{said}")
    return done.stdout
