"""The newest checkpoint is prefetched, and verified nevertheless."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from spotd.wire import CLAIM_AFTER_RELEASE, CLAIM_NOW
from tests.fixtures.waiting import LIMIT_S, until
from tests.trainer.saver.rig import SIZE, Gate, Rig
from trainer.hook.spotd_hook.shared_memory import SharedMemory, make_memory
from trainer.saver.prefetch import Prefetch
from trainer.saver.snapshot import Rank

Start = Callable[..., Rig]


class Bucket(Gate):
    """Counts reads, and can block them."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.read_bytes = 0
        self.reading = 0

    def get_range(self, key: str, start: int, size: int) -> bytes:
        self.reading += 1
        assert self.open.wait(LIMIT_S)
        self.read_bytes += size
        data: bytes = self._store.get_range(key, start, size)
        return data


@pytest.fixture
def store(store: Gate) -> Bucket:
    return Bucket(store._store)


def next_one(start: Start, claim: str = CLAIM_NOW, generation: int = 2, **more: Any) -> Rig:
    """Return the next machine's saver, whose program has not joined yet."""
    rig = start(generation, join=False, claim=False, **more)
    rig.service.start_prefetch(lambda: (claim, 60.0))
    return rig


def prefetch_of(rig: Rig) -> Prefetch:
    assert rig.service.prefetch is not None
    return rig.service.prefetch


def settle(rig: Rig) -> None:
    prefetch_of(rig)._thread.join(LIMIT_S)


def size_of(fd: int) -> int:
    """Return the size of memory; 0 if it was freed."""
    size = os.fstat(fd).st_size
    os.close(fd)
    return size


def resume(rig: Rig, size: int = SIZE) -> int | None:
    rig.size = size
    rig.engine = rig.connect()
    assert rig.engine.claim() is not None
    return rig.restore()


def sources(rig: Rig) -> Any:
    assert rig.engine.resume({"width": 8, "data": "xxh3:0"}) is not None
    return rig.engine.fetch([(0, 0, SIZE)])[1]


def test_what_came_before_the_program_is_not_fetched_again(start: Start, store: Bucket) -> None:
    start(1).save_and_wait(7)
    rig = next_one(start)
    settle(rig)
    read = store.read_bytes
    assert read == SIZE
    assert resume(rig) == 7
    assert sources(rig) == {"memory": SIZE}
    assert store.read_bytes == read


def test_a_program_that_joins_meanwhile_waits_for_it(start: Start, store: Bucket) -> None:
    start(1).save_and_wait(7)
    store.open.clear()
    rig = next_one(start)
    until(lambda: store.reading > 0)
    prefetch_of(rig)._is_wanted = _then(prefetch_of(rig)._is_wanted, store.open.set)  # type: ignore[method-assign]
    assert resume(rig) == 7
    assert store.read_bytes == SIZE


def test_memory_is_had_while_the_bucket_is_waited_for(
    start: Start, store: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(1).save_and_wait(7)
    faulted = threading.Event()
    fault_in = SharedMemory.fault_in

    def noted(memory: SharedMemory, *more: Any) -> bool:
        done = fault_in(memory, *more)
        faulted.set()
        return done

    monkeypatch.setattr(SharedMemory, "fault_in", noted)
    store.open.clear()
    rig = next_one(start)
    until(lambda: store.reading > 0)
    assert faulted.wait(LIMIT_S)
    store.open.set()
    assert resume(rig) == 7


def test_it_waits_for_the_last_checkpoint_of_the_one_before(start: Start, store: Bucket) -> None:
    first = start(1)
    first.save_and_wait(7)
    rig = next_one(start, CLAIM_AFTER_RELEASE)
    first.save_and_wait(8, released=True)
    settle(rig)
    assert store.read_bytes == SIZE
    assert resume(rig) == 8
    assert store.read_bytes == SIZE


def test_a_newer_one_is_fetched_as_ever(start: Start, store: Bucket) -> None:
    first = start(1)
    first.save_and_wait(7)
    rig = next_one(start)
    settle(rig)
    first.save_and_wait(8)
    assert resume(rig) == 8
    assert store.read_bytes == 2 * SIZE


def test_what_is_under_way_is_given_up_for_a_newer_one(start: Start, store: Bucket) -> None:
    first = start(1)
    first.save_and_wait(7)
    store.open.clear()
    rig = next_one(start)
    until(lambda: store.reading > 0)
    held = prefetch_of(rig)
    store.put = store._store.put  # type: ignore[method-assign]
    first.save_and_wait(8)
    rig.engine = rig.connect()  # though nothing can be read
    store.open.set()
    held._thread.join(LIMIT_S)
    assert held._ranks == {}
    assert rig.engine.claim() is not None
    assert rig.restore() == 8


def test_damage_that_was_prefetched_is_found(start: Start, store: Bucket) -> None:
    first = start(1)
    first.save_and_wait(7)
    rig = next_one(start)
    settle(rig)
    prefetch_of(rig)._ranks[0].memory.slot(0)[SIZE // 2] ^= 1
    assert resume(rig) == 7
    assert store.read_bytes > SIZE


def test_a_program_of_another_size_gets_its_own_memory(start: Start, store: Bucket) -> None:
    start(1).save_and_wait(7)
    rig = next_one(start)
    settle(rig)
    memory = os.dup(prefetch_of(rig)._ranks[0].fd)
    rig.size = SIZE + 4096
    rig.engine = rig.connect()
    assert size_of(memory) == 0


def test_a_suspect_is_not_prefetched(start: Start, store: Bucket) -> None:
    first = start(1)
    first.save_and_wait(7)
    first.save_and_wait(8)
    current = first.service.fence.head
    assert current is not None
    assert current.current is not None
    rig = next_one(start, suspect=current.current.manifest)
    settle(rig)
    assert resume(rig) == 7
    assert store.read_bytes == SIZE


def test_a_saver_that_is_started_again_prefetches_nothing(start: Start, store: Bucket) -> None:
    start(1).save_and_wait(7)
    rig = next_one(start, generation=1)
    settle(rig)
    assert store.read_bytes == 0


def test_a_store_that_does_not_answer_holds_nobody_up(start: Start, store: Bucket) -> None:
    start(1).save_and_wait(7)
    store.open.clear()
    store.get = _then(store.get, lambda: store.open.wait(LIMIT_S))  # type: ignore[method-assign]
    rig = next_one(start)
    rig.engine = rig.connect()
    store.open.set()
    settle(rig)
    assert store.read_bytes == 0


def test_what_nobody_took_is_dropped_with_the_first_save(start: Start, store: Bucket) -> None:
    start(1).save_and_wait(7)
    rig = next_one(start)
    settle(rig)
    prefetch = prefetch_of(rig)
    assert resume(rig) == 7
    fd = make_memory(SIZE, 1)
    prefetch._ranks[1] = Rank(
        SharedMemory(fd, SIZE, 1), fd, ()
    )  # as of a rank that there is no more
    memory = os.dup(fd)
    rig.save_and_wait(8)
    assert size_of(memory) == 0


def _then(call: Callable[..., Any], after: Callable[[], object]) -> Callable[..., Any]:
    def both(*args: Any) -> Any:
        result = call(*args)
        after()
        return result

    return both
