"""Lock a file for one process; the lock ends with the process, however that ends."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

from spotd.base.errors import UserError


def hold(path: Path, text: str, fix: str) -> IO[bytes]:
    """Lock `path`, until what is returned is closed. Raises UserError with `text` and `fix` when
    another process holds it, and OSError."""
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise UserError(text, fix) from None
    return file


def hold_database(file: Path) -> IO[bytes]:
    """Lock a SQLite database by a file beside it. Raises UserError and OSError.

    SQLite itself would let two daemons write alternately.
    """
    path = file.resolve()
    return hold(
        path.with_name(f"{path.name}.lock"),
        f"another spotd uses the database {file}",
        "stop it first; several may share one on PostgreSQL alone: see database.url",
    )
