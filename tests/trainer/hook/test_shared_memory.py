"""Memory that two processes share."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
import time
from collections.abc import Iterator

import pytest

from trainer.hook.spotd_hook import shared_memory
from trainer.hook.spotd_hook.shared_memory import (
    PAGE,
    SaveProgress,
    SharedMemory,
    SharedMemoryError,
    make_memory,
)


@pytest.fixture
def pair() -> Iterator[tuple[SharedMemory, SharedMemory]]:
    fd = make_memory(PAGE + 1, 2)
    ours, theirs = SharedMemory(fd, PAGE + 1, 2), SharedMemory(fd, PAGE + 1, 2)
    os.close(fd)
    yield ours, theirs
    ours.close()
    theirs.close()


def test_both_see_the_same_and_slots_do_not_touch(pair: tuple[SharedMemory, SharedMemory]) -> None:
    ours, theirs = pair
    assert ours.fault_in()
    with ours.slot(0) as first, ours.slot(1) as second:
        first[:] = b"\1" * (PAGE + 1)
        second[:] = b"\2" * (PAGE + 1)
    with theirs.slot(0) as first, theirs.slot(1) as second, theirs.padded(0) as padded:
        assert bytes(first) == b"\1" * (PAGE + 1)
        assert bytes(second) == b"\2" * (PAGE + 1)
        assert len(padded) == 2 * PAGE
        assert not any(padded[PAGE + 1 :])
    with pytest.raises(ValueError, match="slot 2 of 2"):
        ours.slot(2)


def test_words_are_heard_at_the_other_end(pair: tuple[SharedMemory, SharedMemory]) -> None:
    ours, theirs = pair
    assert (ours.filled(0), ours.fenced, ours.told) == (0, False, SaveProgress(committed=-1))
    ours.set_filled(1, 17)
    ours.set_staged_us(1, 9)
    assert (theirs.filled(0), theirs.filled(1), theirs.staged_us(1)) == (0, 17, 9)
    told = SaveProgress(True, 0, 1, 2, 3, 4, True, 5, 6)
    theirs.tell(told)
    assert ours.fenced
    assert ours.told == told
    theirs.tell(SaveProgress())
    assert ours.told == SaveProgress()


def test_faulting_in_can_be_called_off(pair: tuple[SharedMemory, SharedMemory]) -> None:
    assert not pair[0].fault_in(lambda: False)


def test_other_threads_go_on_while_memory_is_faulted_in() -> None:
    """A kernel clears 1 to 2 GB/s: a rank of 100 GB would be deaf for a minute, heartbeats too."""
    size, ticks, ended = 400_000_000, 0, threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not ended.wait(0.002):
            ticks += 1

    fd = make_memory(size, 1)
    made = SharedMemory(fd, size, 1)
    os.close(fd)
    thread = threading.Thread(target=tick)
    thread.start()
    began_s = time.monotonic()
    assert made.fault_in()
    took_s = time.monotonic() - began_s
    ended.set()
    thread.join()
    made.close()
    assert ticks >= 0.2 * took_s / 0.002


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOMEM])
def test_a_kernel_that_does_not_know_how_and_one_without_memory(
    pair: tuple[SharedMemory, SharedMemory], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> int:
        ctypes.set_errno(number)
        return -1

    with pair[1].slot(1) as slot:
        slot[:] = b"\3" * (PAGE + 1)
    monkeypatch.setattr(shared_memory, "_madvise", refuse)
    if number == errno.ENOMEM:
        with pytest.raises(SharedMemoryError, match="GB for snapshots: Cannot allocate memory"):
            pair[0].fault_in()
        return
    monkeypatch.setattr(pair[0], "_whole", pair[0]._whole.toreadonly())
    assert pair[0].fault_in()
    with pair[0].slot(1) as slot:
        assert bytes(slot) == b"\3" * (PAGE + 1)


def test_a_look_at_each_page_is_enough_for_a_kernel_that_does_not_know_how(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is fetched into it meanwhile is not touched: no byte is written back."""

    def refuse(*_: object) -> int:
        ctypes.set_errno(errno.EINVAL)
        return -1

    monkeypatch.setattr(shared_memory, "_madvise", refuse)
    fd = make_memory(100 * PAGE, 1)
    made = SharedMemory(fd, 100 * PAGE, 1)
    assert made.fault_in()
    assert os.fstat(fd).st_blocks * 512 == 101 * PAGE
    os.close(fd)
    made.close()


@pytest.mark.parametrize("threads", [1, 3])
def test_every_page_is_there_afterwards(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr(shared_memory, "_AT_ONCE", 16 * PAGE)
    monkeypatch.setattr(shared_memory, "_MOST_THREADS", threads)
    fd = make_memory(100 * PAGE - 5, 2)
    made = SharedMemory(fd, 100 * PAGE - 5, 2)
    assert os.fstat(fd).st_blocks == 0
    assert made.fault_in()
    assert os.fstat(fd).st_blocks * 512 == 201 * PAGE
    os.close(fd)
    made.close()


@pytest.mark.parametrize(("size", "slots"), [(0, 1), (1, 0), (1, 17), (1 << 62, 2)])
def test_what_cannot_be_had_is_said(size: int, slots: int) -> None:
    with pytest.raises(SharedMemoryError):
        make_memory(size, slots)
