"""Memory shared by two processes."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
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
    first_mapping, second_mapping = SharedMemory(fd, PAGE + 1, 2), SharedMemory(fd, PAGE + 1, 2)
    os.close(fd)
    yield first_mapping, second_mapping
    first_mapping.close()
    second_mapping.close()


def test_both_see_the_same_and_slots_do_not_touch(pair: tuple[SharedMemory, SharedMemory]) -> None:
    first_mapping, second_mapping = pair
    assert first_mapping.fault_in()
    with first_mapping.slot(0) as first, first_mapping.slot(1) as second:
        first[:] = b"\1" * (PAGE + 1)
        second[:] = b"\2" * (PAGE + 1)
    with (
        second_mapping.slot(0) as first,
        second_mapping.slot(1) as second,
        second_mapping.padded(0) as padded,
    ):
        assert bytes(first) == b"\1" * (PAGE + 1)
        assert bytes(second) == b"\2" * (PAGE + 1)
        assert len(padded) == 2 * PAGE
        assert not any(padded[PAGE + 1 :])
    with pytest.raises(ValueError, match="slot 2 of 2"):
        first_mapping.slot(2)


def test_words_are_heard_at_the_other_end(pair: tuple[SharedMemory, SharedMemory]) -> None:
    first_mapping, second_mapping = pair
    assert (first_mapping.filled(0), first_mapping.fenced, first_mapping.progress) == (
        0,
        False,
        SaveProgress(committed=-1),
    )
    first_mapping.set_filled(1, 17)
    first_mapping.set_staged_us(1, 9)
    assert (second_mapping.filled(0), second_mapping.filled(1), second_mapping.staged_us(1)) == (
        0,
        17,
        9,
    )
    progress = SaveProgress(True, 0, 1, 2, 3, 4, True, 5, 6)
    second_mapping.set_progress(progress)
    assert first_mapping.fenced
    assert first_mapping.progress == progress
    second_mapping.set_progress(SaveProgress())
    assert first_mapping.progress == SaveProgress()


def test_faulting_in_can_be_called_off(pair: tuple[SharedMemory, SharedMemory]) -> None:
    assert not pair[0].fault_in(lambda: False)


def test_other_threads_go_on_while_memory_is_faulted_in() -> None:
    """A kernel clears 1 to 2 GB/s: a rank of 100 GB would otherwise block all threads."""
    size, ticks, ended = 400_000_000, 0, threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not ended.wait(0.002):
            ticks += 1

    fd = make_memory(size, 1)
    memory = SharedMemory(fd, size, 1)
    os.close(fd)
    thread = threading.Thread(target=tick)
    thread.start()
    assert memory.fault_in()
    ended.set()
    thread.join()
    memory.close()
    assert ticks >= 10, "none or one, if it held the interpreter all the time"


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
    monkeypatch.setattr(pair[0], "_view", pair[0]._view.toreadonly())
    assert pair[0].fault_in()
    with pair[0].slot(1) as slot:
        assert bytes(slot) == b"\3" * (PAGE + 1)


def test_a_look_at_each_page_is_enough_for_a_kernel_that_does_not_know_how(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Data fetched into the memory meanwhile is preserved: no byte is written back."""

    def refuse(*_: object) -> int:
        ctypes.set_errno(errno.EINVAL)
        return -1

    monkeypatch.setattr(shared_memory, "_madvise", refuse)
    fd = make_memory(100 * PAGE, 1)
    memory = SharedMemory(fd, 100 * PAGE, 1)
    assert memory.fault_in()
    assert os.fstat(fd).st_blocks * 512 == 101 * PAGE
    os.close(fd)
    memory.close()


@pytest.mark.parametrize("threads", [1, 3])
def test_every_page_is_there_afterwards(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr(shared_memory, "_FAULT_IN_BYTES", 16 * PAGE)
    monkeypatch.setattr(shared_memory, "_MAX_FAULT_IN_THREADS", threads)
    fd = make_memory(100 * PAGE - 5, 2)
    memory = SharedMemory(fd, 100 * PAGE - 5, 2)
    assert os.fstat(fd).st_blocks == 0
    assert memory.fault_in()
    assert os.fstat(fd).st_blocks * 512 == 201 * PAGE
    os.close(fd)
    memory.close()


@pytest.mark.parametrize(("size", "slots"), [(0, 1), (1, 0), (1, 17), (1 << 62, 2)])
def test_what_cannot_be_had_is_said(size: int, slots: int) -> None:
    with pytest.raises(SharedMemoryError):
        make_memory(size, slots)
