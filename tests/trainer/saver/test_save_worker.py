"""Staged snapshots are saved one at a time, and no failure ends anything."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from providers.stores.base import StoreDeniedError
from tests.fixtures.waiting import LIMIT_S, until
from tests.trainer.saver.rig import CONFIG, PIECES, SIZE, Gate, Rig, fill, head_of
from trainer.hook.spotd_hook.saver_client import (
    FencedError,
    SaverClient,
    SaverError,
    StoreAwayError,
)
from trainer.saver import service as service_module

Start = Callable[..., Rig]


@pytest.mark.req("CKP-15")
def test_saved_and_restored(start: Start) -> None:
    first = start(1)
    assert first.restore() is None
    first.save_and_wait(10)
    kind, entry = first.reports[0]
    assert kind == "checkpoint"
    assert (entry["step"], entry["bytes"], entry["trigger"]) == (10, SIZE, "test")
    assert (entry["released"], entry["final"]) == (False, False)
    assert entry["stage_s"] > 0
    progress = first.engine.progress
    assert (progress.committed, progress.saves, progress.puts) == (10, 1, 8), (
        "six shards, the manifest, HEAD"
    )
    assert (progress.stage_us / 1e6, progress.write_us / 1e6) == (
        entry["stage_s"],
        entry["write_s"],
    )
    assert (progress.pending, progress.since_us) == (False, 0)
    first.save_and_wait(20, released=True)
    assert first.reports[1][1]["released"]
    assert start(2).restore() == 20


def test_one_in_flight_and_the_newest_wins(start: Start, store: Gate) -> None:
    rig = start(1)
    store.open.clear()
    rig.save(1)
    assert store.entered.wait(LIMIT_S)
    for step in (2, 3, 4):
        assert rig.save(step), "there is always memory for the newest"
    assert not rig.engine.drain(0.01)
    store.open.set()
    assert rig.engine.drain(LIMIT_S)
    assert rig.steps("checkpoint") == [1, 4]
    second = start(2)
    assert second.restore() == 4
    current = head_of(store).current
    assert current is not None
    store.delete(current.manifest)
    assert second.restore() == 1, "what came later must not have touched the save in flight"


def test_a_failed_save_is_reported_and_tried_again(start: Start, store: Gate) -> None:
    rig = start(1)
    store.refusing = 1
    rig.save_and_wait(5)
    assert rig.steps("checkpoint_failed") == [5]
    assert "the line is down" in rig.reports[0][1]["error"]
    assert rig.steps("checkpoint") == [5]


@pytest.mark.parametrize(
    "trouble",
    [
        OSError(errno.ENOSPC, "no space left on device"),
        OSError(errno.EIO, "input/output error"),
        StoreDeniedError("forbidden"),
        RuntimeError("a bug of a client"),
    ],
    ids=["ENOSPC", "EIO", "denied", "bug"],
)
def test_whatever_the_store_does_is_reported_and_tried_again(
    start: Start, store: Gate, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    rig, put, failed = start(1), store.put, []

    def fails_twice(key: str, data: Any) -> None:
        if len(failed) < 2:
            failed.append(key)
            raise trouble
        put(key, data)

    monkeypatch.setattr(store, "put", fails_twice)
    rig.save_and_wait(5)
    assert set(rig.steps("checkpoint_failed")) == {5}
    assert str(trouble) in rig.reports[0][1]["error"]
    assert start(2).restore() == 5


def test_what_was_put_is_not_put_again(
    start: Start, store: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, put, seen = start(1), store.put, []

    def fails_once(key: str, data: Any) -> None:
        seen.append(key)
        if key.endswith("-00003") and seen.count(key) == 1:
            raise OSError(errno.EIO, "input/output error")
        put(key, data)

    monkeypatch.setattr(store, "put", fails_once)
    rig.save_and_wait(5)
    assert seen.count(next(key for key in seen if key.endswith("-00003"))) == 2
    assert seen.count(next(key for key in seen if key.endswith("-00000"))) == 1
    assert start(2).restore() == 5


def test_a_newer_save_takes_the_place_of_a_failing_one(start: Start, store: Gate) -> None:
    rig = start(1)
    store.refusing = 10**6
    rig.save(5)
    rig.wait(lambda: rig.steps("checkpoint_failed"))
    store.refusing = 0
    rig.save_and_wait(6)
    assert start(2).restore() == 6


def test_what_waits_behind_the_save_under_way_is_given_up_for_its_sake(
    start: Start, store: Gate
) -> None:
    """Whoever has time for the one alone is not kept by the other; nor is one given up that has
    nothing before it."""
    rig = start(1)
    store.open.clear()
    rig.save(5)
    assert store.entered.wait(LIMIT_S)
    rig.save(6)
    assert not rig.engine.drain(0.05)
    assert not rig.engine.drain(0.05, drop_waiting=True)
    store.open.set()
    assert rig.engine.drain(20, drop_waiting=True)
    assert rig.steps("checkpoint") == [5]
    rig.save(7)
    assert rig.engine.drain(20, drop_waiting=True)
    assert rig.steps("checkpoint") == [5, 7]
    assert start(2).restore() == 7


def test_a_failing_save_does_not_give_way_to_one_that_is_half_staged(
    start: Start, store: Gate
) -> None:
    rig = start(1)
    store.refusing = 10**6
    rig.save(5)
    rig.wait(lambda: rig.steps("checkpoint_failed"))
    assert rig.engine.begin(6, {"config": CONFIG}) is not None
    rig.engine.set_filled(SIZE - 1)
    rig.engine.close()  # the training process dies over it
    store.refusing = 0
    rig.wait(lambda: rig.steps("checkpoint") == [5])
    assert start(2).restore() == 5


@pytest.mark.behaviour(
    "a state that was copied whole is saved, though the program dies then",
    way="the saver",
)
@pytest.mark.req("CKP-15")
def test_a_process_that_dies_after_staging_has_saved(start: Start, store: Gate) -> None:
    for number in range(100):
        rig = start(2 * number + 1)
        store.open.clear()
        rig.save(10 + number)
        rig.engine.close()
        store.open.set()
        rig.wait(lambda rig=rig: rig.steps("checkpoint"))
        current = head_of(store).current
        assert current is not None
        assert current.step == 10 + number
        rig.close()


@pytest.mark.behaviour("a state that was copied in part is never committed", way="the saver")
def test_what_was_half_staged_is_never_committed(start: Start, store: Gate) -> None:
    rig = start(1)
    rig.save_and_wait(10)
    for filled in (0, 1, 4096, SIZE - 1):
        engine = rig.connect()
        assert engine.claim() is not None
        memory = engine.begin(20, {"config": CONFIG})
        assert memory is not None
        engine.set_filled(filled)
        engine.close()
        until(rig.service.worker.nothing_pending)
    assert rig.steps("checkpoint") == [10]
    assert start(2).restore() == 10


def test_a_process_that_comes_again_finds_what_the_one_before_staged(
    start: Start, store: Gate
) -> None:
    rig = start(1)
    rig.save_and_wait(10)
    store.open.clear()
    rig.save(20)
    assert store.entered.wait(LIMIT_S)
    rig.engine.close()
    rig.engine = rig.connect()
    assert rig.engine.claim(wait_s=0.05) is None, "first comes what is under way"
    store.open.set()
    assert rig.engine.claim(wait_s=20.0) is not None
    assert rig.restore() == 20
    memory, sources = rig.engine.fetch([(0, 0, SIZE)])
    assert sources == {"memory": SIZE}
    assert len(memory) == SIZE


def test_what_was_staged_long_before_is_not_given_up_by_a_claim_without_memory(
    start: Start, store: Gate
) -> None:
    rig = start(1)
    rig.save_and_wait(10)
    store.open.clear()
    rig.save(20)
    assert store.entered.wait(LIMIT_S)
    rig.engine.close()
    rig.service._settle_until_s = 0.0  # whoever staged it came long ago
    client = SaverClient(str(rig.path))
    claim = {"claim": "now", "left_s": 0.0}
    assert client.request("claim", **claim, wait_s=0.05)["waiting"]
    store.open.set()
    assert not client.request("claim", **claim, wait_s=20.0)["waiting"]
    client.close()
    rig.engine = rig.connect()
    assert rig.engine.claim() is not None
    assert rig.restore() == 20


def test_what_cannot_be_committed_is_given_up_before_the_resume_point_is_read(
    start: Start, store: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "SETTLE_S", 0.05)
    rig = start(1)
    rig.save_and_wait(10)
    store.refusing = 10**6
    rig.save(20)
    rig.wait(lambda: rig.steps("checkpoint_failed"))
    rig.engine.close()
    rig.engine = rig.connect()
    until(lambda: rig.engine.claim(wait_s=0.1) is not None)
    assert rig.restore() == 10
    store.refusing = 0
    rig.save_and_wait(12)
    assert rig.steps("checkpoint") == [10, 12], "20 would have been in its way for good"


def test_what_was_given_up_while_it_was_put_is_not_committed_after(
    start: Start, store: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "SETTLE_S", 0.05)
    rig = start(1)
    rig.save_and_wait(10)
    store.entered.clear()
    store.open.clear()
    rig.save(20)
    assert store.entered.wait(LIMIT_S)
    rig.engine.close()
    rig.engine = rig.connect()
    until(lambda: rig.engine.claim(wait_s=0.05) is None and rig.abandoned())
    store.open.set()
    until(lambda: rig.engine.claim(wait_s=0.1) is not None)
    assert rig.restore() == 10
    rig.save_and_wait(12)
    assert rig.steps("checkpoint") == [10, 12]


def test_a_process_that_hangs_up_late_spoils_nothing_of_the_next(start: Start) -> None:
    rig = start(1)
    rig.save_and_wait(10)
    previous, rig.engine = rig.engine, rig.connect()
    assert rig.engine.claim() is not None
    memory = rig.engine.begin(20, {"config": CONFIG})
    assert memory is not None
    previous.close()
    time.sleep(0.1)  # until the saver has seen it
    fill(memory, 20)
    rig.engine.set_filled(SIZE)
    assert rig.engine.drain(LIMIT_S)
    assert rig.steps("checkpoint") == [10, 20]


def test_fenced_is_seen_without_asking_and_nothing_is_committed(start: Start) -> None:
    old = start(1)
    assert not old.engine.fenced
    start(2)
    old.save(5)
    with pytest.raises(FencedError, match="generation 1 is fenced: HEAD belongs to generation 2"):
        old.engine.drain(LIMIT_S)
    assert old.engine.fenced
    with pytest.raises(FencedError):
        old.engine.begin(6, {})
    assert old.reports == []


@pytest.mark.req("RPV-16")
def test_of_a_zombie_nothing_is_accepted(start: Start, store: Gate) -> None:
    """It is overtaken by a newer generation at every point of a save."""
    for number, wait in enumerate(["before", "shards", "retry"]):
        old = start(2 * number + 1)
        if wait == "shards":
            store.open.clear()
            old.save(5 + number)
            assert store.entered.wait(LIMIT_S)
        elif wait == "retry":
            store.refusing = 10**6
            old.save(5 + number)
            old.wait(lambda old=old: old.steps("checkpoint_failed"))
        newer = start(2 * number + 2)
        head = head_of(store)
        store.open.set()
        store.refusing = 0
        if wait == "before":
            old.save(5 + number)
        with pytest.raises(FencedError):
            old.engine.drain(LIMIT_S)
        assert head_of(store) == head
        assert old.steps("checkpoint") == []
        store.entered.clear()
        newer.close()


def test_head_is_waited_for(start: Start) -> None:
    old = start(1)
    new = start(2, claim=False)
    assert new.engine.claim("after_release", 60.0, 0.05) is None
    with pytest.raises(SaverError, match="HEAD was not claimed"):
        new.engine.resume(CONFIG)
    old.save_and_wait(3)
    assert old.engine.release()["step"] == 3
    reply = new.engine.claim("after_release", 60.0, 20.0)
    assert reply == {"waiting": False, "final": False, "generation": 2}
    assert new.restore() == 3
    third = start(3, claim=False)
    assert third.engine.claim("after_release", 0.05, 20.0) is not None, "at the deadline"


def test_release_gives_up_what_is_under_way_and_nobody_hears_of_it(
    start: Start, store: Gate
) -> None:
    rig = start(1)
    rig.save_and_wait(5)
    store.entered.clear()
    store.open.clear()
    rig.save(9, released=True)
    assert store.entered.wait(LIMIT_S)
    assert rig.engine.release()["step"] == 5
    store.open.set()
    head = head_of(store)
    assert head.released
    assert head.current is not None
    assert head.current.step == 5
    with pytest.raises(SaverError, match="HEAD is released"):
        rig.save(10)
    until(rig.service.worker.nothing_pending)
    assert rig.steps("checkpoint_failed") == []
    assert head_of(store) == head


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=["ENOSPC", "EIO"])
def test_the_local_disk_has_it_too_and_its_trouble_costs_nothing_else(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    rig = start(1, local=str(tmp_path / "disk"))
    rig.save_and_wait(5)
    assert len(list((tmp_path / "disk").glob("g00000001-s000000000005-*/data"))) == 1

    def fails(fd: int, *_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwrite", fails)
    rig.save_and_wait(6)
    rig.wait(lambda: rig.steps("checkpoint_failed"))
    (failed,) = [data for kind, data in rig.reports if kind == "checkpoint_failed"]
    assert (failed["step"], failed["error"]) == (
        6,
        f"local disk: [Errno {number}] {os.strerror(number)}",
    )
    assert start(2).restore() == 6


def test_a_fresh_saver_reads_the_disk_before_the_bucket(start: Start, tmp_path: Path) -> None:
    local = str(tmp_path / "disk")
    rig = start(1, local=local)
    rig.save_and_wait(5)
    until(lambda: bool(list((tmp_path / "disk").glob("g*"))))
    rig.close()
    again = start(1, local=local)
    assert again.restore() == 5
    assert again.engine.fetch([(0, 0, SIZE)])[1] == {"disk": SIZE}
    data = next((tmp_path / "disk").glob("g*/data"))
    bad = bytearray(data.read_bytes())
    bad[5000] ^= 1
    data.write_bytes(bad)
    third = start(1, local=local)
    assert third.restore() == 5, "a damaged copy costs only the way to the next"
    assert third.engine.fetch([(0, 0, SIZE)])[1] == {"disk": SIZE - 4096, "bucket": 4096}


def test_another_size_of_memory_replaces_the_first(start: Start) -> None:
    rig = start(1)
    rig.save_and_wait(5)
    rig.engine.close()
    rig.size = SIZE + 4096
    count = rig.size // 4
    pieces = [{**PIECES[0], "shape": [count], "block": [count]}]
    rig.engine = rig.connect(pieces)
    assert rig.engine.claim() is not None
    rig.engine.save(6, lambda memory, _: fill(memory, 6), {"config": CONFIG})
    assert rig.engine.drain(LIMIT_S)
    assert rig.restore() == 6


def test_an_outage_at_the_claim_or_the_resume_is_told_as_one(start: Start, store: Gate) -> None:
    start(1).save_and_wait(5)
    rig = start(2, claim=False)
    store.down = True
    with pytest.raises(StoreAwayError):
        rig.engine.claim()
    store.down = False
    assert rig.engine.claim() is not None
    store.down = True
    with pytest.raises(StoreAwayError):
        rig.engine.resume(CONFIG)
    store.down = False
    assert rig.restore() == 5
    assert rig.reports == []
