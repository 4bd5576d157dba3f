"""A database that another process holds: nothing is half written, and it is told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spotd.store.commit import CommitStatus
from spotd.store.errors import StoreUnavailableError
from tests.spotd.store.build import NOW, opening, submit, view
from tests.spotd.store.conftest import make
from tests.spotd.store.test_engine import _shorten_busy_timeout

HOLDER = """
import sqlite3, sys
held = sqlite3.connect(sys.argv[1], isolation_level=None)
held.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held(path: Path) -> Iterator[subprocess.Popen[str]]:
    """By a process of its own, until it is killed or the block ends."""
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield holder
        holder.kill()


def test_a_lock_of_another_process_is_waited_for_told_and_got_over(tmp_path: Path) -> None:
    """Also when that one is killed with the lock in its hands."""
    store = make(f"sqlite:///{tmp_path}/spotd.db")
    before = submit(store)
    _shorten_busy_timeout(store)
    with held(tmp_path / "spotd.db") as holder:
        with pytest.raises(StoreUnavailableError, match="another process holds it locked"):
            store.commit(before, opening(), NOW)
        assert view(store) == before, "who reads waits for nobody"
        holder.kill()
        holder.wait()
        assert store.commit(view(store), opening(), NOW).status is CommitStatus.DONE
    store.close()
