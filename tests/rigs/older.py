"""spotd as it was before this version of the wire: the whole program, not a part made to look old.

`spotd-wire-1.tar.xz` is `git archive` of the packages at the last revision that spoke version 1 of
the wire (schema 0002); a clone that CI makes may have no history to take it from. When the version
grows, take the last revision before that, and keep the archive of the version before alone.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

from spotd import wire

VERSION = wire.WIRE_VERSION - 1
SCHEMA = "0002"  # that it needs
ARCHIVE = Path(__file__).parents[1] / "fixtures" / f"spotd-wire-{VERSION}.tar.xz"


def unpack(folder: Path) -> Path:
    """Put it into `folder`, to be named in PYTHONPATH."""
    with tarfile.open(ARCHIVE) as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is not None:
                path = folder / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(file.read())
    return folder
