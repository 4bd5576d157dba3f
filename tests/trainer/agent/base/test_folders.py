"""Folders in memory are deleted if, and only if, their folder on disk is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.agent.base import paths
from trainer.agent.base.folders import make_folders
from trainer.agent.base.paths import find_paths


def test_only_what_belongs_to_a_disk_that_is_gone_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "_memory_root", lambda: tmp_path)
    gone, there, odd, ours = (
        find_paths({"SPOTD_HOME": str(tmp_path / name)}, "job-1", 1)
        for name in ("gone", "there", "odd", "ours")
    )
    for found in (gone, there, odd):
        make_folders(found)
    gone.folder.rename(tmp_path / "elsewhere")
    mark = odd.memory / "home"
    mark.unlink()
    mark.mkdir()  # cannot be read
    make_folders(ours)
    assert not gone.memory.exists()
    assert all(found.memory.is_dir() for found in (there, odd, ours))
