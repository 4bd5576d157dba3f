"""Say how to install what an optional part of spotd needs."""

from __future__ import annotations

import re
import shlex
from importlib.metadata import PackageNotFoundError, requires

_EXTRA = re.compile(r"""^(?P<requirement>[^;]+);.*extra\s*==\s*["'](?P<extra>[\w-]+)["']""")


def install_command(*extras: str) -> str:
    """Return the command that installs the packages of these extras.

    It names the packages themselves, because spotd need not come from a registry.
    """
    try:
        lines = requires("spotd") or []
    except PackageNotFoundError:  # run from a checkout that is not installed
        return f"pip install '.[{','.join(extras)}]'"
    found = [match for line in lines if (match := _EXTRA.match(line))]
    packages = {match["requirement"].strip(): None for match in found if match["extra"] in extras}
    return shlex.join(["pip", "install", *packages])
