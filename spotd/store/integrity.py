"""Check that a database file is undamaged.

SQLite notices damage only when a statement reads the damaged page. So all pages are checked before
a daemon starts; some hundred megabytes take a second.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from spotd.store.errors import StoreError

ADVICE = (
    "stop spotd, move it and its -wal and -shm files away, and put a backup in its place: "
    "`spotd db restore FILE`"
)


def check_whole(file: Path) -> None:
    """Check every page of the database `file`, which no other process may have open.

    A missing or empty file is undamaged. Raises StoreError with what to do.
    """
    if not file.exists() or not file.stat().st_size:
        return
    try:
        with closing(sqlite3.connect(file, timeout=5.0)) as connection:
            [[problem], *_] = connection.execute("PRAGMA quick_check(1)").fetchall()
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_CORRUPT:
            return  # not damage: whoever opens it says what is the matter
        problem = str(error)
    except UnicodeDecodeError:
        problem = "its schema is not text"
    if problem != "ok":
        message = " ".join(str(problem).split())
        raise StoreError(f"the database {file} is damaged ({message}): {ADVICE}")
