"""Stop and kill process trees that fork meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from providers.local import process_tree
from tests.fixtures.processes import alive, carrying, state_of
from tests.fixtures.waiting import LIMIT_S, until

# A root that adopts orphans, over a process that keeps making them: sixty in all, each a `sleep`
# that can fork nothing itself, and everything ends by itself within a minute.
ROOT = r"""
import os, signal, time
from providers.local.process_tree import become_root
become_root("test-root")
if os.fork() == 0:
    os.setsid()
    for _ in range(60):
        if os.fork() == 0:
            os.setsid()
            if os.fork():
                os._exit(0)
            os.execvp("sleep", ["sleep", "60"])
        time.sleep(0.002)
    os.execvp("sleep", ["sleep", "60"])
print("ready", flush=True)
end = time.monotonic() + 60
while time.monotonic() < end:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        pass
    time.sleep(0.01)
"""


@pytest.fixture
def root() -> Iterator[int]:
    mark = str(uuid.uuid4())
    argv = [sys.executable, "-c", ROOT]
    environment = {**os.environ, "SPOTD_TEST_MARK": mark}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        while left := carrying("SPOTD_TEST_MARK", mark):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def test_stop_catches_what_is_being_forked(root: int) -> None:
    until(lambda: len(process_tree.descendants(root)) > 5)
    stopped = process_tree.stop_tree(root)
    assert root in stopped
    before = set(process_tree.descendants(root))
    assert {state_of(pid) for pid in stopped} == {"T"}
    assert set(process_tree.descendants(root)) == before  # nobody is left to fork
    process_tree.continue_tree(root)
    until(lambda: len(process_tree.descendants(root)) > len(before) or state_of(root) != "T")


def test_kill_tree_leaves_nothing(root: int) -> None:
    until(lambda: len(process_tree.descendants(root)) > 5)
    everybody = set(process_tree.descendants(root)) | {root}
    process_tree.kill_tree(root)
    assert [pid for pid in everybody if alive(pid)] == []


def test_marked_processes_are_found_wherever_they_hang() -> None:
    mark = f"mark-{os.getpid()}"
    with subprocess.Popen(["sleep", "300"], env={"SPOTD_LOCAL_INSTANCE": mark}) as process:
        until(
            lambda: process.pid in process_tree.find_with_environment("SPOTD_LOCAL_INSTANCE", mark)
        )
        process_tree.kill_with_environment("SPOTD_LOCAL_INSTANCE", mark)
        assert process.wait(LIMIT_S) == -signal.SIGKILL


def test_a_process_name_cannot_confuse_the_reader(tmp_path: Path) -> None:
    odd = tmp_path / "a ) R 1 (b"
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([str(odd), "300"]) as process:
        row = until(lambda: process_tree.read_process(process.pid))
        assert row.parent == os.getpid()
        process.kill()
    assert process_tree.read_process(process.pid) is None


def test_a_process_that_waits_for_a_stopped_child_to_begin_is_no_hindrance() -> None:
    """A process in vfork, like a shell before exec: it cannot stop while its child is stopped."""
    vfork = "import ctypes, time; ctypes.CDLL(None).vfork(); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", vfork]) as parent:
        try:
            until(lambda: process_tree.descendants(parent.pid))
            until(lambda: state_of(parent.pid) == "D")
            assert len(process_tree.stop_tree(parent.pid)) == 2
            process_tree.kill_below(parent.pid)
        finally:
            for pid in (*process_tree.descendants(parent.pid), parent.pid):
                os.kill(pid, signal.SIGKILL)
