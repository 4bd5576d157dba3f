"""Which restored files were opened."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.directory import open_watch
from trainer.directory.open_watch import OpenWatch


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "checkpoint-1" / "a.pt", tmp_path / "checkpoint-1" / "x y", tmp_path / "b"]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    return paths


def test_what_another_process_opens(files: list[Path]) -> None:
    watch = OpenWatch(files[1:])
    assert watch.opened() == set()
    code = "import sys; [open(path).read() for path in sys.argv[1:]]"
    subprocess.run([sys.executable, "-c", code, *map(str, files[:2])], check=True)
    assert watch.opened() == {str(files[1])}, "the other one is not watched"
    watch.close()
    files[2].read_bytes()
    assert watch.opened() == {str(files[1])}


def test_to_list_and_to_stat_is_not_to_open(files: list[Path]) -> None:
    watch = OpenWatch(files)
    for path in files:
        list(path.parent.iterdir())
        path.stat()
        os.utime(path)
    assert watch.opened() == set()


def test_a_link_to_it_opens_it(files: list[Path], tmp_path: Path) -> None:
    watch = OpenWatch(files)
    (tmp_path / "latest").symlink_to("checkpoint-1")
    (tmp_path / "latest" / "a.pt").read_bytes()
    assert watch.opened() == {str(files[0])}


def test_where_the_kernel_cannot_tell_all_counts_as_opened(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert OpenWatch([tmp_path / "nowhere" / "x"]).opened() == {str(tmp_path / "nowhere" / "x")}
    monkeypatch.setattr(open_watch, "MAX_FOLDERS", 1)
    assert OpenWatch(files).opened() == set(map(str, files))


def test_lost_events_count_as_opened(files: list[Path]) -> None:
    watch = OpenWatch(files)
    watch._read(open_watch._EVENT.pack(-1, open_watch._IN_Q_OVERFLOW, 0, 0))
    assert watch.opened() == set(map(str, files))
