"""Which Python runs what the agent's own may not be able to."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

OWN_PYTHON = "saver/bin/python"  # below the agent's home: of an environment with what a saver needs
_OLDEST = (3, 11)  # the saver's; the agent's is 3.10


def find_python(home: Path, *store_urls: str) -> str:
    """One that can run the saver, for stores of those kinds: of its own environment, else the one
    that runs us; "" for neither."""
    own = home / OWN_PYTHON
    if own.exists():
        return str(own)
    folders = all(url.startswith("file:") for url in store_urls)
    needs = ["xxhash"] if folders else ["xxhash", "obstore"]
    able = sys.version_info >= _OLDEST and all(map(find_spec, needs))
    return sys.executable if able else ""
