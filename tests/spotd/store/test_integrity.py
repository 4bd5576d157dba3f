"""A damaged database is found before anything is built on it, and a whole one is not suspected."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from spotd.store.errors import StoreError
from spotd.store.integrity import check_whole


def filled(file: Path) -> Path:
    """A database of some hundred pages."""
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, word TEXT UNIQUE)")
        rows = [(number, f"{number:0200}") for number in range(2000)]
        connection.executemany("INSERT INTO t VALUES (?, ?)", rows)
    return file


def damage(file: Path, share: float) -> None:
    """Overwrite a page, that far into the file, as a failing disk would."""
    size = file.stat().st_size
    with file.open("r+b") as opened:
        opened.seek(int(size * share) // 4096 * 4096)
        opened.write(b"\xa5" * 4096)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.97])
def test_a_damaged_page_is_found_wherever_it_is(tmp_path: Path, share: float) -> None:
    file = filled(tmp_path / "spotd.db")
    check_whole(file)
    damage(file, share)
    with pytest.raises(StoreError, match=r"is damaged .*: stop spotd, .* `spotd db restore FILE`"):
        check_whole(file)


def test_a_file_that_was_cut_short_is_damaged(tmp_path: Path) -> None:
    file = filled(tmp_path / "spotd.db")
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size // 2)
    with pytest.raises(StoreError, match="is damaged"):
        check_whole(file)


@pytest.mark.parametrize("content", [None, b"", b"no database at all" * 1000])
def test_what_is_not_damage_is_left_to_whoever_opens_it(
    tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "spotd.db"
    if content is not None:
        file.write_bytes(content)
    check_whole(file)
    assert file.exists() == (content is not None), "nothing is made"


def test_what_lies_in_the_log_beside_it_counts(tmp_path: Path) -> None:
    """After a kill the newest pages are there alone."""
    file = filled(tmp_path / "spotd.db")
    with closing(sqlite3.connect(file, isolation_level=None)) as writer:
        writer.execute("INSERT INTO t VALUES (-1, 'new')")
        check_whole(file)
        [[found]] = writer.execute("SELECT word FROM t WHERE id = -1").fetchall()
    assert found == "new"
