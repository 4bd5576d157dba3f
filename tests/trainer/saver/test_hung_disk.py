"""Who waits for the local disk, and for how long if it hangs with a snapshot's memory in use."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fixtures.waiting import LIMIT_S
from tests.trainer.saver.rig import Gate, Rig

Start = Callable[..., Rig]


def test_a_local_disk_that_hangs_is_told_and_saving_goes_on(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.saver.save_worker.DISK_STALL_S", 0.1)
    monkeypatch.setattr("trainer.saver.rank_upload.DISK_FIRST_S", 0.1)
    rig, write, disk_works = start(1, local=str(tmp_path / "disk")), os.pwrite, threading.Event()

    def hang(fd: int, data: memoryview, at: int) -> int:
        assert disk_works.wait(LIMIT_S)
        return write(fd, data, at)

    monkeypatch.setattr(os, "pwrite", hang)
    try:
        for step in (1, 2, 3):
            rig.save_and_wait(step)
        assert rig.steps("checkpoint") == [1, 2, 3], "the other memory serves"
        (failure,) = [data for kind, data in rig.reports if kind == "checkpoint_failed"]
        assert failure["step"] == 1
        assert failure["error"].startswith("local disk: no data was written for 0.1 s")
    finally:
        disk_works.set()
    (stuck,) = rig.service.worker._stuck
    for upload in stuck.uploads.values():
        assert upload.join(LIMIT_S)
    rig.save_and_wait(4)
    assert list((tmp_path / "disk").glob("g00000001-s000000000004-*/data")), "it is used again"
    assert start(2).restore() == 4


def test_where_cores_are_few_the_local_disk_has_it_before_the_bucket(
    start: Start, store: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.saver.rank_upload.FEW_CORES", 1 << 10)
    monkeypatch.setattr("trainer.saver.rank_upload.DISK_FIRST_S", 20.0)
    disk, put, suffixes = tmp_path / "disk", store.put, list[list[str]]()

    def put_and_look(key: str, data: bytes | memoryview | Path) -> None:
        suffixes.append([path.suffix for path in disk.iterdir()])
        put(key, data)

    monkeypatch.setattr(store, "put", put_and_look)
    start(1, local=str(disk)).save_and_wait(1)
    assert suffixes[0] == [""], "it is there, and no more new"


@pytest.mark.parametrize(("cores", "flags"), [(1 << 10, {"released": True}), (0, {})])
def test_the_last_save_and_one_with_cores_enough_do_not_wait_for_it(
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    flags: dict[str, bool],
) -> None:
    monkeypatch.setattr("trainer.saver.rank_upload.FEW_CORES", cores)
    monkeypatch.setattr("trainer.saver.rank_upload.DISK_FIRST_S", 60.0)
    monkeypatch.setattr("trainer.saver.save_worker.DISK_STALL_S", 0.1)
    rig, write, disk_works = start(1, local=str(tmp_path / "disk")), os.pwrite, threading.Event()

    def hang(fd: int, data: memoryview, at: int) -> int:
        assert disk_works.wait(LIMIT_S)
        return write(fd, data, at)

    monkeypatch.setattr(os, "pwrite", hang)
    try:
        rig.save_and_wait(1, **flags)
        assert rig.steps("checkpoint") == [1]
    finally:
        disk_works.set()
