"""Find a Python that can run the saver, which needs more than the agent does, and run modules with
it beside the agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

# Below the agent's home: an environment of the image, and the one that saver_env.py builds.
SAVER_PYTHON = "saver/bin/python"
BUILT = Path("saver/made")
REQUIRED_MODULES = ("obstore", "xxhash")
MIN_PYTHON = (3, 11)  # for the saver; the agent needs 3.10


def find_python(home: Path, *store_urls: str) -> str:
    """Return a Python that can run the saver for stores with these URLs, or "".

    An environment made for the saver comes first, then the agent's own interpreter.
    """
    if (python := saver_python(home)) != "":
        return python
    only_folders = all(url.startswith("file:") for url in store_urls)
    required = REQUIRED_MODULES[1:] if only_folders else REQUIRED_MODULES
    usable = sys.version_info >= MIN_PYTHON and all(map(find_spec, required))
    return sys.executable if usable else ""


def saver_python(home: Path) -> str:
    """Return the Python of an environment made for the saver, or ""."""
    for path in (home / SAVER_PYTHON, home / BUILT / "bin" / "python"):
        if path.exists():
            return str(path)
    return ""


def add_saver_packages(home: Path) -> None:
    """Make the saver's packages importable for the agent, if they are for the same Python version.

    The agent itself moves a bucket's HEAD when the program does not use our engine.
    """
    packages = home / BUILT / f"lib/python3.{sys.version_info[1]}/site-packages"
    if packages.is_dir() and str(packages) not in sys.path:
        sys.path.append(str(packages))


def start_side_program(
    python: str, module: str, request: object, *arguments: str
) -> subprocess.Popen[bytes]:
    """Run `module` with `python`, and send it `request` as one JSON line on stdin, where nobody
    else can read it.

    The program ends when its stdin is closed, so also when the agent ends. Raises OSError.
    """
    process = subprocess.Popen(
        [python, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        start_new_session=True,
    )
    assert process.stdin is not None  # noqa: S101 - it is a pipe
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    return process
