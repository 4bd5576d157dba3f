"""What a program leaves on its machine."""

from __future__ import annotations

import os
import queue
from pathlib import Path

from tests.fixtures.waiting import LIMIT_S
from trainer.agent.run.left_files import AFTER_S, NONE, LeftFilesWatch, describe_left_files


def write(path: Path, size: int, *, at_s: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    os.utime(path, (at_s, at_s))


def test_the_largest_new_files_are_named(tmp_path: Path) -> None:
    assert describe_left_files(tmp_path, since_ns=0) == NONE
    write(tmp_path / "train.py", 9_000_000, at_s=100)
    write(tmp_path / "out" / "model.pt", 1_500_000, at_s=300)
    write(tmp_path / "log.txt", 30, at_s=300)
    since_ns = 200 * 10**9
    text = describe_left_files(tmp_path, since_ns=since_ns)
    assert text == "out/model.pt (1.5 MB), log.txt (30 B)"
    for number in range(4):
        write(tmp_path / f"f{number}", 5_000 + number, at_s=300)
    text = describe_left_files(tmp_path, since_ns=since_ns)
    assert text == "out/model.pt (1.5 MB), f3 (5 kB), f2 (5 kB) and 3 more files"


def test_what_is_hidden_or_a_link_is_none(tmp_path: Path) -> None:
    write(tmp_path / ".cache" / "x", 5, at_s=300)
    write(tmp_path / ".hidden", 5, at_s=300)
    (tmp_path / "link").symlink_to(tmp_path / ".hidden")
    assert describe_left_files(tmp_path, since_ns=0) == NONE
    assert describe_left_files(tmp_path / "nowhere", since_ns=0) == NONE


def test_they_are_reported_once_after_a_while(tmp_path: Path) -> None:
    now_s = [0.0]
    reports: queue.SimpleQueue[str] = queue.SimpleQueue()
    watch = LeftFilesWatch(tmp_path, report=reports.put, monotonic=lambda: now_s[0])
    watch.poll(0)
    write(tmp_path / "model.pt", 5, at_s=300)
    now_s[0] = AFTER_S - 1
    watch.poll(0)
    assert reports.empty()
    now_s[0] = AFTER_S
    watch.poll(0)
    assert reports.get(timeout=LIMIT_S) == "model.pt (5 B)"
    now_s[0] = 3 * AFTER_S
    watch.poll(0)
    assert reports.empty()
