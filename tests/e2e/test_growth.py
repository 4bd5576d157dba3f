"""A daemon does not grow with the jobs that it has seen: no memory, no open files, no threads."""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from spotd.demo.box import Box, wait_for
from tests.e2e.growth import SETTINGS, Size, growth, live, measure
from tests.fixtures.waiting import LIMIT_S

JOBS = 12  # after those that warm it up; make soak has many more


@pytest.mark.soak  # of so few jobs a pool of threads that fills looks like a leak
@pytest.mark.xdist_group("daemon")
def test_a_daemon_keeps_nothing_of_jobs_that_are_over() -> None:
    """One file, thread or megabyte for each job would show several times over."""
    with (
        tempfile.TemporaryDirectory(prefix="sp-", dir="/tmp") as name,
        Box(Path(name), settings=SETTINGS) as box,
    ):
        box.start()
        sizes = list(live(box, JOBS))
    found = growth(sizes[0], sizes[-1])
    assert sizes[-1].jobs - sizes[0].jobs == JOBS
    assert not keeps(sizes), sizes
    assert found.rss_kib < 512, sizes


def keeps(sizes: list[Size]) -> bool:
    """Whether files or threads grew with every batch. A pool that takes one more thread, which
    opens the database, grows now and then, up to its bound."""
    steps = [growth(before, after) for before, after in itertools.pairwise(sizes)]
    return any(min(getattr(step, name) for step in steps) > 0 for name in ("files", "threads"))


def test_what_grows_now_and_then_is_a_pool_and_what_always_grows_is_a_leak() -> None:
    def life(files: list[int], threads: list[int]) -> list[Size]:
        both = zip(files, threads, strict=True)
        return [Size(8 + 4 * n, 100_000, *size) for n, size in enumerate(both)]

    assert not keeps(life([23, 23, 24, 27], [43, 43, 44, 45]))
    assert keeps(life([23, 27, 31, 35], [43, 43, 43, 43]))
    assert keeps(life([23, 23, 23, 23], [43, 44, 45, 46])), "one for four jobs"


LEAK = """
import sys, threading
files, blocks = [], []
for line in sys.stdin:
    files.append(open("/dev/null"))
    blocks.append(bytearray(1 << 20))
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    print("leaked", flush=True)
"""


def test_a_process_that_leaks_is_seen_to() -> None:
    """What is measured is what leaks: one of each, four times."""
    command = [sys.executable, "-c", LEAK]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1) as leaking:
        assert leaking.stdin is not None
        assert leaking.stdout is not None

        def leak() -> None:
            assert leaking.stdin is not None
            assert leaking.stdout is not None
            leaking.stdin.write("\n")
            assert leaking.stdout.readline() == "leaked\n"

        leak()
        first = measure(leaking.pid, 0)
        for _ in range(4):
            leak()
        last = measure(leaking.pid, 4)
        leaking.stdin.close()
        wait_for("its end", lambda: leaking.poll() is not None, LIMIT_S)
    found = growth(first, last)
    assert found.files == 1
    assert found.threads == 1
    assert found.rss_kib > 700
