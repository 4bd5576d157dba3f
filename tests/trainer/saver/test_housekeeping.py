"""Housekeeping delays no save, yields to urgent ones, and needs no pauses between saves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from tests.fixtures.waiting import LIMIT_S, until
from tests.trainer.saver.rig import CHUNKS, Gate, Reads, Rig, head_of, save, stored_steps
from tests.trainer.saver.test_regions import Away

Start = Callable[..., Rig]


@pytest.mark.req("CKP-04")
def test_a_store_does_not_grow_though_saves_follow_closer_than_one_is_read_back(
    start: Start, store: Gate, reads: Reads
) -> None:
    """Saves follow each other directly, and reading one back takes ten times as long."""
    rig = start(1, keep=1)
    reads.pause_s = 0.02
    rounds, step = 0, 0
    while rounds < 4:
        before, step = len(store.deleted), step + 1
        assert step < 400, "nothing is ever removed"
        save(rig, step)
        rounds += len(store.deleted) > before
    assert stored_steps(store)[-1] == step
    assert len(stored_steps(store)) < step
    until(lambda: stored_steps(store) == [step])


def test_no_save_waits_for_it(start: Start, store: Gate, reads: Reads) -> None:
    """A blocked chunk delays no save, and HEAD still names the checkpoint that is read back."""
    rig = start(1, keep=1)
    save(rig, 1)
    reads.open.clear()
    save(rig, 2)
    until(lambda: reads.count == 1)
    for step in range(3, 30):
        save(rig, step)
    rig.save_and_wait(30)
    assert reads.count == 1
    assert store.deleted == []
    assert [ref.step for ref in head_of(store).previous] == list(range(29, 1, -1))
    reads.open.set()
    until(lambda: stored_steps(store) == [30])
    reads.open.clear()
    reads.count = 0
    save(rig, 31)
    until(lambda: reads.count == 1)
    for step in range(32, 50):
        save(rig, step)
    assert head_of(store).previous[-1].step == 30, "which is whole, if all since should be torn"
    reads.open.set()
    until(lambda: stored_steps(store) == [49])
    save(rig, 50)
    assert len(head_of(store).previous) == 8


@pytest.mark.parametrize("why", ["released", "final", "asked", "waited for"])
def test_one_in_a_hurry_shares_the_line_for_one_chunk_at_most(
    start: Start, store: Gate, reads: Reads, why: str
) -> None:
    rig = start(1, keep=1)
    rig.save_and_wait(1)
    reads.open.clear()
    rig.save_and_wait(2)
    until(lambda: reads.count == 1)
    store.entered.clear()
    store.open.clear()
    flags = {why: True} if why in ("released", "final") else {}
    assert rig.save(3, trigger="asked" if why == "asked" else "cadence", **flags)
    assert store.entered.wait(LIMIT_S)
    waiting = threading.Thread(target=rig.service.worker.drain, args=(20,))
    if why == "waited for":
        waiting.start()
        until(lambda: rig.service.worker._drains == 1)
    reads.open.set()
    time.sleep(0.2)
    assert reads.count == 1
    store.open.set()
    rig.wait(lambda: rig.steps("checkpoint") == [1, 2, 3])
    until(lambda: stored_steps(store) == [3])
    if why == "waited for":
        waiting.join()


def test_beside_one_that_is_not_it_goes_on(start: Start, store: Gate, reads: Reads) -> None:
    rig = start(1, keep=1)
    rig.save_and_wait(1)
    reads.open.clear()
    rig.save_and_wait(2)
    until(lambda: reads.count == 1)
    store.open.clear()
    assert rig.save(3, trigger="cadence")
    reads.open.set()
    until(lambda: len(store.deleted) == CHUNKS + 1)
    assert rig.steps("checkpoint") == [1, 2]


def test_where_a_store_is_full_what_is_old_makes_room(
    start: Start, store: Gate, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has space for two checkpoints; none is deleted before the third is written."""
    rig, put = start(1, keep=1), store.put

    def full(key: str, data: object) -> None:
        if "/s" in key and len(list(store.list("jobs/job/g"))) >= 2 * (CHUNKS + 1):
            raise OSError(28, "no space left on device")
        put(key, data)  # type: ignore[arg-type]

    rig.save_and_wait(1)
    reads.open.clear()
    rig.save_and_wait(2)
    monkeypatch.setattr(store, "put", full)
    assert rig.save(3)
    rig.wait(lambda: rig.steps("checkpoint_failed"))
    reads.open.set()
    rig.wait(lambda: rig.steps("checkpoint") == [1, 2, 3])


def test_what_is_told_of_one_store_ends_nothing_in_the_other(
    start: Start, store: Gate, reads: Reads
) -> None:
    """No further commit starts it again."""
    rig = start(1, keep=1, others={"s3://away/runs": Away()})
    save(rig, 1)
    reads.open.clear()
    save(rig, 2)
    until(lambda: reads.count == 1)
    store.entered.clear()
    store.open.clear()
    assert rig.save(3, trigger="asked")
    assert store.entered.wait(LIMIT_S)
    reads.open.set()
    rig.wait(lambda: rig.steps("checkpoint_failed"))
    store.open.set()
    until(lambda: stored_steps(store) == [3])
    assert len(rig.steps("checkpoint_failed")) == 1, "told once"
