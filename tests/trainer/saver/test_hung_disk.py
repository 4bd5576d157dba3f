"""Who waits for the local disk, and how long where it hangs: no error, no byte, and a snapshot's
memory in its hands."""

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
    monkeypatch.setattr("trainer.saver.save_worker.STILL_S", 0.1)
    monkeypatch.setattr("trainer.saver.rank_upload.DISK_FIRST_S", 0.1)
    rig, write, moves = start(1, local=str(tmp_path / "disk")), os.pwrite, threading.Event()

    def hang(fd: int, data: memoryview, at: int) -> int:
        assert moves.wait(LIMIT_S)
        return write(fd, data, at)

    monkeypatch.setattr(os, "pwrite", hang)
    try:
        for step in (1, 2, 3):
            rig.save_and_wait(step)
        assert rig.steps("checkpoint") == [1, 2, 3], "the other memory serves"
        (told,) = [data for kind, data in rig.reports if kind == "checkpoint_failed"]
        assert (told["step"], told["error"][:33]) == (1, "local disk: it has taken nothing ")
    finally:
        moves.set()
    (stuck,) = rig.office.saving._stuck
    for outgoing in stuck.outgoing.values():
        assert outgoing.join(LIMIT_S)
    rig.save_and_wait(4)
    assert list((tmp_path / "disk").glob("g00000001-s000000000004-*/data")), "it is used again"
    assert start(2).restore() == 4


def test_where_cores_are_few_the_local_disk_has_it_before_the_bucket(
    start: Start, store: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.saver.rank_upload.FEW_CORES", 1 << 10)
    monkeypatch.setattr("trainer.saver.rank_upload.DISK_FIRST_S", 20.0)
    disk, put, seen = tmp_path / "disk", store.put, list[list[str]]()

    def look(key: str, data: bytes | memoryview | Path) -> None:
        seen.append([path.suffix for path in disk.iterdir()])
        put(key, data)

    monkeypatch.setattr(store, "put", look)
    start(1, local=str(disk)).save_and_wait(1)
    assert seen[0] == [""], "it is there, and no more new"


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
    monkeypatch.setattr("trainer.saver.save_worker.STILL_S", 0.1)
    rig, write, moves = start(1, local=str(tmp_path / "disk")), os.pwrite, threading.Event()

    def hang(fd: int, data: memoryview, at: int) -> int:
        assert moves.wait(LIMIT_S)
        return write(fd, data, at)

    monkeypatch.setattr(os, "pwrite", hang)
    try:
        rig.save_and_wait(1, **flags)
        assert rig.steps("checkpoint") == [1]
    finally:
        moves.set()
