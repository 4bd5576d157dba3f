"""What a program leaves on its machine."""

from __future__ import annotations

import queue
from pathlib import Path

import pytest

from tests.fixtures.waiting import LIMIT_S
from tests.trainer.outputs.test_files import moment, write
from trainer.agent.run.left_files import AFTER_S, NONE, LeftFilesWatch, describe_left_files


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    folder = tmp_path / "workdir"
    folder.mkdir()
    return folder


def test_the_largest_new_files_are_named(workdir: Path) -> None:
    assert describe_left_files(workdir, since_ns=0) == NONE
    write(workdir / "train.py", 9_000_000)
    since_ns = moment(workdir)
    write(workdir / "out" / "model.pt", 1_500_000)
    write(workdir / "log.txt", 30)
    text = describe_left_files(workdir, since_ns=since_ns)
    assert text == "out/model.pt (1.5 MB), log.txt (30 B)"
    for number in range(4):
        write(workdir / f"f{number}", 5_000 + number)
    text = describe_left_files(workdir, since_ns=since_ns)
    assert text == "out/model.pt (1.5 MB), f3 (5 kB), f2 (5 kB) and 3 more files"


def test_what_is_hidden_is_none(tmp_path: Path) -> None:
    write(tmp_path / ".cache" / "x")
    (tmp_path / "link").symlink_to(write(tmp_path / ".hidden"))
    assert describe_left_files(tmp_path / "nowhere", since_ns=0) == NONE
    assert describe_left_files(tmp_path, since_ns=0) == "link (5 B)"


def test_they_are_reported_once_after_a_while() -> None:
    now_s = [0.0]
    found = [""]
    looked: queue.SimpleQueue[None] = queue.SimpleQueue()
    reports: queue.SimpleQueue[str] = queue.SimpleQueue()

    def find() -> str:
        looked.put(None)
        return found[0]

    watch = LeftFilesWatch(find, report=reports.put, monotonic=lambda: now_s[0])
    watch.poll()
    now_s[0] = AFTER_S - 1
    watch.poll()
    assert looked.empty()
    now_s[0] = AFTER_S
    watch.poll()
    looked.get(timeout=LIMIT_S)
    found[0] = "model.pt (5 B)"
    now_s[0] = 2 * AFTER_S
    watch.poll()
    assert reports.get(timeout=LIMIT_S) == "model.pt (5 B)"
    looked.get(timeout=LIMIT_S)
    now_s[0] = 3 * AFTER_S
    watch.poll()
    assert looked.empty()
    assert reports.empty()
