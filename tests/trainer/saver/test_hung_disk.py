"""A local disk that hangs: no error, no byte, and a snapshot's memory in its hands."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer.saver.rig import Rig

Start = Callable[..., Rig]


def test_a_local_disk_that_hangs_is_told_and_saving_goes_on(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.saver.saving.STILL_S", 0.1)
    rig, write, moves = start(1, local=str(tmp_path / "disk")), os.pwrite, threading.Event()

    def hang(fd: int, data: memoryview, at: int) -> int:
        assert moves.wait(60)
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
        assert outgoing.join(20.0)
    rig.save_and_wait(4)
    assert list((tmp_path / "disk").glob("g00000001-s000000000004-*/data")), "it is used again"
    assert start(2).restore() == 4
