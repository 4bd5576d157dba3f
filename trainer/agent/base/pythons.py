"""Which Python runs what the agent's own may not be able to."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

OWN_PYTHON = "saver/bin/python"  # below the agent's home: of an environment that somebody else made
MADE = Path("saver/made")  # of the one that we made; see tools.py
NEEDS = ("obstore", "xxhash")
OLDEST = (3, 11)  # the saver's; the agent's is 3.10


def find_python(home: Path, *store_urls: str) -> str:
    """One that can run the saver, for stores of those kinds: of an environment of its own, else the
    one that runs us; "" for neither."""
    own = own_python(home)
    if own:
        return own
    folders = all(url.startswith("file:") for url in store_urls)
    needs = NEEDS[1:] if folders else NEEDS
    able = sys.version_info >= OLDEST and all(map(find_spec, needs))
    return sys.executable if able else ""


def own_python(home: Path) -> str:
    """Of an environment of the saver's own; "" where there is none."""
    for path in (home / OWN_PYTHON, home / MADE / "bin" / "python"):
        if path.exists():
            return str(path)
    return ""


def adopt(home: Path) -> None:
    """Let the agent import what was made for the saver, where that is of the agent's own Python: a
    bucket's HEAD is moved by the agent itself where the program does not."""
    site = home / MADE / f"lib/python3.{sys.version_info[1]}/site-packages"
    if site.is_dir() and str(site) not in sys.path:
        sys.path.append(str(site))
