"""A daemon does not grow with the jobs that it has seen: no memory, no open files, no threads."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from spotd.demo.box import Box, wait_for
from tests.e2e.growth import SETTINGS, growth, live, measure

JOBS = 12  # after those that warm it up; make soak has many more
LIMIT_S = 30.0


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
    assert found.files < 0.3, sizes
    assert found.threads < 0.5, sizes  # pools grow to their bounds: now and then one more
    assert found.rss_kib < 512, sizes


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
